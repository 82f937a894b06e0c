# nextlong in a container, in two targets:
#
#     docker build --tag nextlong .                        the core: make, check and export data
#     docker build --target torch --tag nextlong:torch .   and transformer encoders, training, evaluation
#
# Files are read and written in the current folder, by the user who asks:
#
#     docker run --rm --user "$(id -u)" --volume "$PWD:/work" nextlong run my.yaml
#     docker run --rm --user "$(id -u)" --volume "$PWD:/work" --gpus all --ipc host nextlong:torch run my.yaml

FROM python:3.12.8-slim-bookworm AS base
WORKDIR /opt/nextlong
COPY constraints.txt ./
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY recipes ./recipes
COPY src ./src
RUN python -m pip install --no-cache-dir --constraint constraints.txt .
# For any user: what libraries cache goes to a folder that each may write.
ENV HOME=/tmp
WORKDIR /work

FROM base AS torch
WORKDIR /opt/nextlong
RUN python -m pip install --no-cache-dir --constraint constraints.txt torch==2.13.0 \
    && python -m pip install --no-cache-dir --constraint constraints.txt ".[evaluate,sentence-transformers,static,torch,train]"
WORKDIR /work
USER nobody
ENTRYPOINT ["nextlong"]

# The last target is the one that is built by default.
FROM base AS core
USER nobody
ENTRYPOINT ["nextlong"]
CMD ["--help"]
