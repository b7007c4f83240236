# A small image of the examples fleet and observe, for docker-compose.yml.
FROM rust:1-trixie AS build
WORKDIR /phalanx
COPY . .
RUN cargo build --locked -p phalanx --features prometheus --example fleet --example observe \
  && cp target/debug/examples/fleet target/debug/examples/observe /usr/local/bin/

FROM debian:trixie-slim
COPY --from=build /usr/local/bin/fleet /usr/local/bin/observe /usr/local/bin/
USER nobody
ENTRYPOINT ["fleet"]
