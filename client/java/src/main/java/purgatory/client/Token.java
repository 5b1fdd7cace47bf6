package purgatory.client;

import io.grpc.CallCredentials;
import io.grpc.Metadata;
import io.grpc.SecurityLevel;
import io.grpc.Status;
import java.util.concurrent.Executor;
import java.util.function.Supplier;

/** A bearer token, for CompositeChannelCredentials. It is asked for each call, and sent over TLS only. */
public final class Token extends CallCredentials {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private final Supplier<String> token;

  public Token(Supplier<String> token) {
    this.token = token;
  }

  @Override
  public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
    executor.execute(
        () -> {
          if (call.getSecurityLevel() != SecurityLevel.PRIVACY_AND_INTEGRITY) {
            applier.fail(Status.UNAUTHENTICATED.withDescription("a token is sent over TLS only"));
            return;
          }
          try {
            Metadata headers = new Metadata();
            headers.put(AUTHORIZATION, "Bearer " + token.get());
            applier.apply(headers);
          } catch (RuntimeException failed) {
            applier.fail(Status.UNAUTHENTICATED.withDescription("no token").withCause(failed));
          }
        });
  }
}
