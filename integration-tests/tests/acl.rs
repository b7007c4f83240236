//! The ACL line of `docs/redis.md` allows every operation, and no command more than needed.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "cluster/harness.rs"]
mod harness;
#[path = "cluster/operations.rs"]
mod operations;

use std::collections::BTreeSet;

use phalanx::Source;
use phalanx::store::{RedisConnection, RedisOptions, StateKey};
use phalanx_store_redis::RedisStore;
use phalanx_testkit::server::redis_cli::redis_command;
use phalanx_testkit::server::{AclServer, Cluster, Engine, MASTER_NAME, Options, RedisProcess, Sentinel};
use redis::Client;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};

/// Commands sent by the client itself; all others are called by scripts.
const CLIENT: [&str; 4] = ["evalsha", "eval", "subscribe", "ping"];

const PASSWORD: &str = "hunter2";

/// Returns the line of the documentation, unwrapped and with a password.
fn line() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/redis.md");
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.split("```").find(|block| block.contains("ACL SETUSER phalanx")).unwrap();
    line.replace("\\\n", " ").replace(">PASSWORD", &format!(">{PASSWORD}")).trim().to_owned()
}

fn commands(line: &str) -> BTreeSet<String> {
    line.split_whitespace().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect()
}

fn store(source: impl Into<RedisConnection>) -> RedisStore {
    let options = RedisOptions { store_budget: harness::BUDGET, service: "test".to_owned(), ..RedisOptions::default() };
    RedisStore::over(source).options(options).build().unwrap()
}

/// Runs everything a replica does, from its first call until it leaves. Returns the sources of all decisions.
async fn run_replica(source: impl Into<RedisConnection>, server: &RedisProcess) -> Vec<Source> {
    server.cli(&["FLUSHALL"]).await;
    server.cli(&["SCRIPT", "FLUSH"]).await;
    server.cli(&["SET", "ph2:{test.default:m}:m", "not a set"]).await; // repaired with DEL
    let store = store(source);
    let decided = operations::run_all(&store, &StateKey::new("policy", "route")).await;
    store.leave().await;
    decided
}

/// Returns the denied commands, keys and channels.
async fn denied(server: &RedisProcess) -> BTreeSet<String> {
    let log = server.cli(&["ACL", "LOG"]).await;
    let lines: Vec<_> = log.lines().collect();
    let objects = lines.windows(2).filter(|pair| pair[0] == "object").map(|pair| pair[1].to_owned());
    // Clients announce their name since 7.2; it is harmless that this is denied. Redis 6.2 logs no subcommands.
    let announces = if Engine::installed().unwrap().is_redis_7_or_later() { "client|setinfo" } else { "client" };
    objects.filter(|object| object != announces).collect()
}

#[test]
fn the_line_grants_exactly_the_commands_of_scripts_and_client_on_our_keys() {
    let scripts = phalanx_lua::COMMANDS.iter().map(|command| command.to_lowercase());
    let used: BTreeSet<_> = scripts.chain(CLIENT.map(str::to_owned)).collect();
    assert_eq!(commands(&line()), used);
    let others: Vec<_> =
        line().split_whitespace().skip(3).filter(|word| !word.starts_with('+')).map(str::to_owned).collect();
    assert_eq!(others, ["on", ">hunter2", "resetkeys", "~ph2:*", "resetchannels", "&ph2:*", "-@all"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_runs_as_that_user() {
    let redis = AclServer::start(&line()).await;
    let decided = run_replica(Client::open(redis.url()).unwrap(), redis.server()).await;
    assert!(decided.iter().all(|source| *source == Source::Fleet), "{decided:?}");
    assert_eq!(denied(redis.server()).await, BTreeSet::new());
    for foreign in [&["EVAL", "return 1", "1", "other"][..], &["SUBSCRIBE", "other"], &["FLUSHALL"], &["KEYS", "ph2:*"]]
    {
        assert_eq!(redis_command(&redis.url(), foreign).await.unwrap_err().code(), Some("NOPERM"), "{foreign:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_one_command_something_is_denied() {
    let redis = AclServer::start(&line()).await;
    let server = redis.server();
    for command in commands(&line()) {
        server.cli(&["ACL", "SETUSER", "phalanx", &format!("-{command}")]).await;
        let decided = run_replica(Client::open(redis.url()).unwrap(), server).await;
        println!("without {command}: {decided:?}");
        server.until(&["ACL", "LOG"], |log| log.contains(&format!("object\n{command}\n"))).await;
        assert_eq!(denied(server).await, BTreeSet::from([command.clone()]));
        server.cli(&["ACL", "SETUSER", "phalanx", &format!("+{command}")]).await;
        server.cli(&["ACL", "LOG", "RESET"]).await;
    }
}

/// Server options with the documented user and additional rules.
fn options(more: &str) -> Options {
    let line = line().replace("ACL SETUSER", "user");
    let users = format!("user default on nopass ~* &* +@all\n{line} {more}\n");
    Options::new().file("users.acl", users).set("aclfile", &["users.acl"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_additionally_needs_cluster_slots() {
    let cluster = Cluster::with(options("+cluster|slots")).await;
    let login = |url: String| url.replace("redis://", &format!("redis://phalanx:{PASSWORD}@"));
    let urls: Vec<_> = cluster.urls().into_iter().map(login).collect();
    let store = store(redis::cluster::ClusterClient::new(urls).unwrap());
    for route in 0..6 {
        let decided = operations::run_all(&store, &StateKey::new("policy", &format!("route-{route}"))).await;
        assert!(decided.iter().all(|source| *source == Source::Fleet), "{decided:?}");
    }
    store.leave().await;
    for master in cluster.masters() {
        assert_eq!(denied(master).await, BTreeSet::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_additionally_needs_role() {
    let sentinel = Sentinel::with(1, options("+role")).await;
    let address = |server: &RedisProcess| redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), server.port());
    let sentinels = sentinel.sentinels().iter().map(address);
    let builder = SentinelClientBuilder::new(sentinels, MASTER_NAME, SentinelServerType::Master).unwrap();
    let client = builder.set_client_to_redis_username("phalanx").set_client_to_redis_password(PASSWORD);
    let master = sentinel.master().await;
    let decided = run_replica(client.build().unwrap(), master).await;
    assert!(decided.iter().all(|source| *source == Source::Fleet), "{decided:?}");
    assert_eq!(denied(master).await, BTreeSet::new());
}
