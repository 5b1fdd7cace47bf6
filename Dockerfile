# The daemon as a small image: the build stage compiles the wheel, the last stage holds only what serves.
#   docker build -t purgatory .
#   docker run --rm --read-only -p 127.0.0.1:7440:7440 -p 127.0.0.1:7441:7441 purgatory
# With a journal in a volume, so that what was receipted survives:
#   docker run --rm --read-only -v purgatory:/data -p 127.0.0.1:7440:7440 purgatory serve --data-dir /data

FROM python:3.11-slim-bookworm AS build
RUN command -v gcc >/dev/null \
    || (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*)
WORKDIR /build
COPY constraints.txt ./
RUN python -m venv tools \
    && tools/bin/python -m pip install -q --no-cache-dir -c constraints.txt \
       setuptools grpcio-tools mypy librt types-protobuf types-grpcio
RUN python -m venv /opt/purgatory
COPY . .
# PURGATORY_BUILD=compiled: an image with an uncompiled engine is not worth having.
# Compiled twice: instrumented, to record a profile, then with that profile.
RUN export PURGATORY_BUILD=compiled && tools/bin/python setup.py -q profile \
    && tools/bin/python -m pip wheel -q --no-build-isolation --no-deps -w wheels . \
    && /opt/purgatory/bin/python -m pip install -q --no-cache-dir -c constraints.txt \
       "$(echo wheels/purgatory_waits-*.whl)[server]" \
    && ! grep -rl __gcov_ /opt/purgatory/lib --include='purgatory*.so'

FROM python:3.11-slim-bookworm
COPY --from=build /opt/purgatory /opt/purgatory
ENV PATH=/opt/purgatory/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PURGATORY_GRPC_ADDRESS=0.0.0.0:7440 \
    PURGATORY_HTTP_ADDRESS=0.0.0.0:7441
# Where a volume for the journal goes: a new volume takes over the owner of this folder.
RUN install -d -o 10001 -g 10001 -m 700 /data
# Needs no home, no shell and no capability, and writes to /data alone, if --data-dir says so.
USER 10001:10001
WORKDIR /
EXPOSE 7440 7441
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import grpc, grpc_health.v1.health_pb2 as m, grpc_health.v1.health_pb2_grpc as s; raise SystemExit(s.HealthStub(grpc.insecure_channel('127.0.0.1:7440')).Check(m.HealthCheckRequest(), timeout=4).status != m.HealthCheckResponse.SERVING)"]
ENTRYPOINT ["purgatory"]
CMD ["serve"]
