# The fleet example as a small image, for docker-compose.yml.
FROM rust:1-trixie AS build
WORKDIR /phalanx
COPY . .
RUN cargo build --locked --example fleet && cp target/debug/examples/fleet /fleet

FROM debian:trixie-slim
COPY --from=build /fleet /usr/local/bin/fleet
USER nobody
ENTRYPOINT ["fleet"]
