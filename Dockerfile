# Built from source with nothing but rustc, cargo and gcc; run as an unprivileged user, without a shell.
# conformance/artefacts/run checks the instructions and puts the second stage together from Debian packages, without Docker.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
# The image has a toolchain; rust-toolchain.toml would make rustup fetch another.
RUN rm rust-toolchain.toml && cargo build --profile dist --locked -p warmroute-cli

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/dist/warmroute /usr/local/bin/warmroute
EXPOSE 30000 29000
ENTRYPOINT ["/usr/local/bin/warmroute"]
