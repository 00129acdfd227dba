# Untested: written where no Docker runs.
#   docker build -t headrace .
#   docker run --rm -p 127.0.0.1:8000:8000 -v headrace-models:/models headrace
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE Makefile ./
COPY native native
COPY src src
RUN make wheel

FROM python:3.12-slim-bookworm
COPY --from=build /source/dist/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl \
    && useradd --create-home --uid 10001 headrace \
    && mkdir /models && chown headrace /models
USER headrace
ENV HEADRACE_CACHE=/models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --start-period=120s --interval=10s \
    CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"
ENTRYPOINT ["headrace"]
CMD ["serve", "--host", "0.0.0.0"]
