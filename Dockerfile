# Relay with its own PostgreSQL, without root.
#
#   docker build -t relay .
#   docker run --init --stop-timeout 120 -p 127.0.0.1:8025:8025 -p 127.0.0.1:2525:2525 \
#       -v relay:/var/lib/relay relay
#
# Inside, the ports are bound to every address; what the world may reach is what you publish.
# Names other than localhost need RELAY_HTTP__PUBLIC_URL.  With RELAY_DATABASE__URL set, the
# volume holds only keys (and devices' blobs, unless PostgreSQL keeps them).

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/relay
COPY requirements.run.lock ./
RUN /opt/relay/bin/pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --only-binary :all: -r requirements.run.lock
COPY pyproject.toml README.md LICENSE supervisor.py ./
COPY actors actors
COPY relay relay
COPY simulation simulation
# The build tool comes from the same place as everything else: the full lock, by its hash.
COPY requirements.lock ./
RUN python -m venv /tmp/build \
    && awk '/^setuptools==/ { take = 1 } take { print } take && !/\\$/ { exit }' requirements.lock \
        > /tmp/build.lock \
    && /tmp/build/bin/pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes -r /tmp/build.lock \
    && /tmp/build/bin/pip wheel --no-cache-dir --disable-pip-version-check \
        --no-deps --no-build-isolation --wheel-dir /tmp/wheels . \
    && /opt/relay/bin/pip install --no-cache-dir --disable-pip-version-check \
        --no-deps --no-index /tmp/wheels/*.whl

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/relay --create-home \
        --shell /usr/sbin/nologin relay \
    && chmod 700 /var/lib/relay
COPY --from=build /opt/relay /opt/relay
ENV PATH=/opt/relay/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RELAY_DATA_DIR=/var/lib/relay \
    RELAY_HTTP__BIND=0.0.0.0:8025 \
    RELAY_SMTP__BIND=0.0.0.0:2525 \
    RELAY_SUBMISSION__BIND=0.0.0.0:2587 \
    RELAY_DEVICES__PUSH_BIND=0.0.0.0:7701 \
    RELAY_DEVICES__RECEIVE_BIND=0.0.0.0:7700
USER relay
WORKDIR /var/lib/relay
VOLUME /var/lib/relay
EXPOSE 8025 2525 2587 7700 7701
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["relay", "status", "--ready"]
ENTRYPOINT ["relay"]
CMD ["up"]
