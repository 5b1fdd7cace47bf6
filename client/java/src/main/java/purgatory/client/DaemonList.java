package purgatory.client;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.Status;
import io.grpc.StatusOr;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;

/**
 * Targets that list several daemons of which one serves, as {@code purgatory:///10.0.0.1:7440,10.0.0.2:7440}. A channel with
 * such a target sends its calls to the daemon that serves. It applies {@link #SERVICE_CONFIG} by itself, which needs
 * grpc-services in the class path.
 *
 * <p>gRPC finds this class by META-INF/services. Keep that file when you merge jars.
 */
public final class DaemonList extends NameResolverProvider {
  /**
   * Makes a channel find the daemon that serves among all addresses of its target. It is for {@code defaultServiceConfig},
   * with a target such as {@code dns:///purgatory:7440}.
   */
  public static final Map<String, ?> SERVICE_CONFIG =
      Map.of(
          "loadBalancingConfig", List.of(Map.of("round_robin", Map.of())),
          "healthCheckConfig", Map.of("serviceName", "purgatory.v1.PurgatoryService"));

  @Override
  protected boolean isAvailable() {
    return true;
  }

  @Override
  protected int priority() {
    return 4; // below that of DNS, which stays the scheme of targets without one
  }

  @Override
  public String getDefaultScheme() {
    return "purgatory";
  }

  @Override
  public NameResolver newNameResolver(URI target, NameResolver.Args arguments) {
    if (!getDefaultScheme().equals(target.getScheme())) {
      return null;
    }
    if (target.getPath() == null || target.getPath().length() < 2) {
      throw new IllegalArgumentException(target + " has no addresses: purgatory:///HOST:PORT,HOST:PORT");
    }
    List<URI> daemons = new ArrayList<>();
    for (String address : target.getPath().substring(1).split(",", -1)) {
      URI daemon = URI.create("//" + address);
      if (daemon.getHost() == null || daemon.getPort() < 0) {
        throw new IllegalArgumentException("'" + address + "' in " + target + " is not HOST:PORT");
      }
      daemons.add(daemon);
    }
    return new Resolver(daemons, arguments);
  }

  private static final class Resolver extends NameResolver {
    private final List<URI> daemons;
    private final ConfigOrError serviceConfig;
    private final Executor executor;
    private Listener2 listener;

    Resolver(List<URI> daemons, Args arguments) {
      this.daemons = daemons;
      serviceConfig = arguments.getServiceConfigParser().parseServiceConfig(SERVICE_CONFIG);
      executor = arguments.getOffloadExecutor();
    }

    @Override
    public String getServiceAuthority() {
      return daemons.get(0).getAuthority();
    }

    @Override
    public void start(Listener2 listener) {
      this.listener = listener;
      refresh();
    }

    @Override
    public void refresh() {
      executor.execute(() -> listener.onResult(lookUp())); // looking up names blocks
    }

    /** All addresses of all daemons. A name that is not known does not matter as long as another one is. */
    private ResolutionResult lookUp() {
      List<EquivalentAddressGroup> found = new ArrayList<>();
      Status unknown = Status.UNAVAILABLE;
      for (URI daemon : daemons) {
        // Each daemon's certificate is checked against its own name.
        Attributes.Key<String> authority = EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE;
        Attributes attributes = Attributes.newBuilder().set(authority, daemon.getAuthority()).build();
        try {
          for (InetAddress address : InetAddress.getAllByName(daemon.getHost())) {
            found.add(new EquivalentAddressGroup(new InetSocketAddress(address, daemon.getPort()), attributes));
          }
        } catch (UnknownHostException failed) {
          unknown = unknown.augmentDescription("unknown host " + daemon.getHost());
        }
      }
      return ResolutionResult.newBuilder()
          .setAddressesOrError(found.isEmpty() ? StatusOr.fromStatus(unknown) : StatusOr.fromValue(found))
          .setServiceConfig(serviceConfig)
          .build();
    }

    @Override
    public void shutdown() {}
  }
}
