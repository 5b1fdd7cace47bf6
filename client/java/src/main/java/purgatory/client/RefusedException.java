package purgatory.client;

import io.grpc.Status;

/** A wait or an event was not accepted, and has changed nothing. */
public final class RefusedException extends RuntimeException {
  public final Status.Code code;

  /** As a path in the request; may be empty. */
  public final String field;

  RefusedException(int code, String field, String message) {
    super(field.isEmpty() ? message : field + ": " + message);
    this.code = Status.fromCodeValue(code).getCode();
    this.field = field;
  }
}
