# The daemon as a small image: the build stage compiles the wheel, the last stage holds only what serves.
#   docker build -t purgatory .
# Without the packages that only some daemons need. With those for an archive, for the sources, or for both:
#   docker build -t purgatory:archive --target archive .
#   docker build -t purgatory:sources --target sources .
#   docker build -t purgatory:full --target full .
# It listens on 0.0.0.0, so it wants TLS and a policy (docs/security.md), or to be told that it is reachable from this machine only:
#   docker run --rm --read-only -e PURGATORY_INSECURE=true -p 127.0.0.1:7440:7440 -p 127.0.0.1:7441:7441 purgatory
# With a journal in a volume, so that what was receipted survives:
#   docker run --rm --read-only -e PURGATORY_INSECURE=true -v purgatory:/data -p 127.0.0.1:7440:7440 purgatory serve --data-dir /data

# A tag moves. For a build that can be repeated, give the digest that you have checked:
#   --build-arg BASE_IMAGE=python:3.11-slim-trixie@sha256:...
ARG BASE_IMAGE=python:3.11-slim-trixie

FROM ${BASE_IMAGE} AS build
RUN command -v gcc >/dev/null \
    || (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*)
WORKDIR /build
# Pinned by hash: `make image-requirements` writes these files.
COPY deploy/build-requirements.txt deploy/requirements.txt ./
RUN python -m venv tools \
    && tools/bin/python -m pip install -q --no-cache-dir --require-hashes -r build-requirements.txt
# Without pip of its own: what serves has no use for an installer.
RUN python -m venv --without-pip /opt/purgatory \
    && tools/bin/python -m pip --python /opt/purgatory/bin/python install -q --no-cache-dir --require-hashes -r requirements.txt
COPY . .
# PURGATORY_BUILD=compiled: an image with an uncompiled engine is not worth having.
# Compiled twice: instrumented, to record a profile, then with that profile.
RUN export PURGATORY_BUILD=compiled && tools/bin/python setup.py -q profile \
    && tools/bin/python -m pip wheel -q --no-build-isolation --no-deps -w wheels . \
    && tools/bin/python -m pip --python /opt/purgatory/bin/python install -q --no-cache-dir --no-deps wheels/purgatory_waits-*.whl \
    && tools/bin/python -m pip --python /opt/purgatory/bin/python check \
    && ! grep -rl __gcov_ /opt/purgatory/lib --include='purgatory*.so'

# What a target adds is a folder of its own, so that it is a layer of its own.
FROM build AS build-archive
COPY deploy/archive-requirements.txt ./
RUN tools/bin/python -m pip --python /opt/purgatory/bin/python install -q --no-cache-dir --require-hashes --prefix /added -r archive-requirements.txt \
    && rm -rf /added/lib/python*/site-packages/pyarrow/include /added/lib/python*/site-packages/pyarrow/tests

FROM build AS build-sources
COPY deploy/sources-requirements.txt ./
RUN tools/bin/python -m pip --python /opt/purgatory/bin/python install -q --no-cache-dir --require-hashes --prefix /added -r sources-requirements.txt

FROM ${BASE_IMAGE} AS serving
# The base's own installer goes too, so that whoever gets in finds none.
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/bin/pip* /usr/local/bin/wheel
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
# Over TLS where the certificate is set by the environment. Readiness needs no client certificate, and this checks no server's.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, ssl, urllib.request as u; s = 's' * bool(os.environ.get('PURGATORY_TLS_CERTIFICATE_FILE')); u.urlopen(f'http{s}://127.0.0.1:7441/readyz', timeout=4, context=ssl._create_unverified_context())"]
ENTRYPOINT ["purgatory"]
CMD ["serve"]

FROM serving AS archive
COPY --from=build-archive /added /opt/purgatory

FROM serving AS sources
COPY --from=build-sources /added /opt/purgatory

FROM archive AS full
COPY --from=build-sources /added /opt/purgatory

# Without a target this one is built.
FROM serving
