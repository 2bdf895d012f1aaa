# To pin an image, add its digest to the tag: python:3.13-slim-bookworm@sha256:… (docs/deployment.md).
FROM python:3.13-slim-bookworm AS build

# Add push, tracing, kafka or nats if you use them.
ARG EXTRAS=redis,s3,stripe,telegram
WORKDIR /src
RUN python -m venv /opt/holdfast
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# Everything but the embedded PostgreSQL: containers have one of their own.
RUN /opt/holdfast/bin/pip install --no-cache-dir ".[${EXTRAS}]" \
    && /opt/holdfast/bin/python -m compileall -q /opt/holdfast/lib


FROM python:3.13-slim-bookworm

RUN groupadd --gid 10001 holdfast \
    && useradd --uid 10001 --gid holdfast --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin holdfast \
    && install -d -o holdfast -g holdfast -m 0750 /data
COPY --from=build /opt/holdfast /opt/holdfast

# Nothing writes outside /data, which keeps receipts, and /tmp: the root file system can be read-only.
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOLDFAST_DATA_DIR=/data
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000

# The process is alive. Whether it can also reach the database is for /readyz and your load balancer.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]

ENTRYPOINT ["holdfast"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--no-worker"]
