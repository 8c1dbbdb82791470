# docker build -t capsella .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" capsella compare cells/
FROM python:3.12-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt constraints.txt README.md LICENSE ./
COPY csrc csrc
COPY capsella capsella
# PyTorch's CPU build, at the versions of constraints.txt. The kernels choose the best instruction set when they run.
RUN python -m venv /opt/capsella \
    && /opt/capsella/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        --constraint constraints.txt ".[explore,export,pretrained,search]"

FROM python:3.12-slim
COPY --from=build /opt/capsella /opt/capsella
ENV PATH=/opt/capsella/bin:$PATH HOME=/tmp
WORKDIR /work
ENTRYPOINT ["capsella"]
CMD ["--help"]
