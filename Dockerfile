# Trivium on a CPU. Models are kept in the volume /models.
#
#   docker build -t trivium .
#   docker run -p 8000:8000 -v trivium-models:/models trivium
#
# The default command serves smollm2; give another: docker run … trivium serve gemma3-270m --host 0.0.0.0

FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make cmake && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/trivium
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY csrc csrc
COPY src src
RUN TRIVIUM_REQUIRE_NATIVE=1 /opt/trivium/bin/pip install --no-cache-dir .

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 trivium && install -d -o trivium -g trivium /models
COPY --from=build /opt/trivium /opt/trivium
ENV PATH=/opt/trivium/bin:$PATH PYTHONUNBUFFERED=1 TRIVIUM_CACHE_DIR=/models
USER trivium
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["trivium"]
CMD ["serve", "smollm2", "--host", "0.0.0.0", "--port", "8000"]
