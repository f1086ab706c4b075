# The command line on a CPU; docs/installing.md says how to use it.
FROM python:3.11-slim
WORKDIR /source

# torch first, as in the Makefile: it changes least, and whatever depends on it then keeps this CPU build.
COPY constraints-cpu.txt ./
RUN pip install --no-cache-dir -c constraints-cpu.txt torch torchvision --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE ./
COPY src src
ARG EXTRAS=vision,huggingface
RUN pip install --no-cache-dir -c constraints-cpu.txt ".${EXTRAS:+[$EXTRAS]}"

# Any user may run it (docker run --user), so that what it writes into a mounted folder belongs to whoever asked for it.
ENV HOME=/home/holdfast
RUN useradd --create-home --uid 1000 holdfast && mkdir /data && chmod 777 /data "$HOME"
USER 1000
WORKDIR /data
ENTRYPOINT ["holdfast"]
