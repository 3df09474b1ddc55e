# Built from source with nothing but rustc, cargo and gcc; run as nobody, without a shell.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked -p warmroute-cli

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/dist/warmroute /usr/local/bin/warmroute
EXPOSE 30000 29000
ENTRYPOINT ["/usr/local/bin/warmroute"]
