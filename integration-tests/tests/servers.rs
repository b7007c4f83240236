//! Tests of the servers and the proxy that other tests use.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::net::TcpStream;
use std::time::Duration;

use phalanx_testkit::server::*;
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, RedisResult, cmd};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// How long to wait before a connection counts as silent; a reply over loopback takes a thousandth of it.
const A_WHILE: Duration = Duration::from_millis(150);

/// Opens a connection without a response timeout.
async fn connect(url: &str) -> MultiplexedConnection {
    try_connect(&Client::open(url).unwrap()).await.unwrap()
}

async fn try_connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(10 * SECOND));
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn ping(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    cmd("PING").query_async(connection).await
}

/// Returns whether a ping is answered, even on a busy machine.
async fn answers(connection: &mut MultiplexedConnection) -> bool {
    timeout(10 * SECOND, ping(connection)).await.is_ok_and(|answer| answer.is_ok())
}

/// Returns whether a ping gets neither a reply nor an error.
async fn is_silent(connection: &mut MultiplexedConnection) -> bool {
    timeout(A_WHILE, ping(connection)).await.is_err()
}

mod redis_server {
    use super::*;

    #[tokio::test]
    async fn all_tests_of_a_process_share_one_server() {
        let (one, other) = tokio::join!(Redis::shared(), Redis::shared());
        assert_eq!(one, other);
        assert_eq!(ping(&mut connect(one).await).await.unwrap(), "PONG");
    }

    #[tokio::test]
    async fn a_started_server_is_exclusive_and_ends_when_dropped() {
        let redis = Redis::start().await;
        assert_ne!(redis.url(), Redis::shared().await);
        assert_eq!(redis.cli(&["SET", "key", "value"]).await, "OK");
        assert_eq!(redis.cli(&["GET", "key"]).await, "value");
        let address = redis.address();
        drop(redis);
        assert!(TcpStream::connect(address).is_err());
    }

    #[tokio::test]
    async fn debug_commands_are_enabled() {
        assert_eq!(Redis::start().await.cli(&["DEBUG", "SLEEP", "0"]).await, "OK");
    }
}

mod redis_process {
    use super::*;

    #[tokio::test]
    async fn a_stopped_server_does_not_reply_until_it_is_resumed() {
        let redis = RedisProcess::start().await;
        let mut connection = connect(&redis.url()).await;
        redis.stop();
        let mut late = connection.clone();
        let pending = tokio::spawn(async move { ping(&mut late).await });
        assert!(is_silent(&mut connection).await);
        redis.resume();
        assert_eq!(pending.await.unwrap().unwrap(), "PONG");
    }

    #[tokio::test]
    async fn a_killed_server_accepts_no_connections_and_restarts_empty_on_the_same_port() {
        let redis = RedisProcess::start().await;
        redis.cli(&["SET", "key", "value"]).await;
        let (port, process) = (redis.port(), redis.process_id());
        redis.kill();
        assert!(TcpStream::connect(redis.address()).is_err());
        redis.restart().await;
        assert_eq!(redis.port(), port);
        assert_ne!(redis.process_id(), process);
        assert_eq!(redis.cli(&["DBSIZE"]).await, "0");
    }

    #[tokio::test]
    async fn options_reach_the_server() {
        let options = Options::new().set("maxmemory", &["2mb"]).password("secret").set("hz", &["1"]).set("hz", &["2"]);
        let redis = RedisProcess::with(options).await;
        assert_eq!(redis.cli(&["CONFIG", "GET", "maxmemory"]).await, "maxmemory\n2097152");
        assert_eq!(redis.cli(&["CONFIG", "GET", "hz"]).await, "hz\n2");
        let unauthenticated = redis_cli::redis_command(&format!("redis://{}", redis.address()), &["PING"]).await;
        assert_eq!(unauthenticated.unwrap_err().code(), Some("NOAUTH"));
    }

    #[tokio::test]
    #[should_panic(expected = "no-such-option")]
    async fn a_server_that_does_not_start_panics_with_its_log() {
        RedisProcess::with(Options::new().set("no-such-option", &["1"])).await;
    }

    #[tokio::test]
    async fn servers_outlive_the_thread_that_started_them() {
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(RedisProcess::start())
        };
        let redis = std::thread::spawn(start).join().unwrap();
        assert_eq!(redis.cli(&["PING"]).await, "PONG");
    }
}

mod deployments {
    use super::*;

    #[tokio::test]
    async fn a_cluster_serves_all_slots_and_a_hung_master_does_not_affect_the_others() {
        let cluster = Cluster::start().await;
        let keys: Vec<_> = ["{a}", "{b}", "{c}", "{1}"].map(|tag| format!("key{tag}")).into();
        for key in &keys {
            let master = cluster.master_of(key);
            assert_eq!(master.cli(&["CLUSTER", "KEYSLOT", key]).await, cluster::slot(key).to_string());
            assert_eq!(master.cli(&["SET", key, "value"]).await, "OK");
        }
        let client = redis::cluster::ClusterClient::new(cluster.urls()).unwrap();
        let mut connection = client.get_async_connection().await.unwrap();
        for key in &keys {
            let value: String = cmd("GET").arg(key).query_async(&mut connection).await.unwrap();
            assert_eq!(value, "value");
        }
        let hung = cluster.master_of(&keys[0]);
        hung.stop();
        for master in cluster.masters().iter().filter(|master| master.port() != hung.port()) {
            assert!(master.cli(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok"));
        }
        hung.resume();
        cluster.until_healthy().await;
    }

    #[tokio::test]
    async fn a_replica_is_promoted_on_command_and_when_its_master_dies() {
        let sentinel = Sentinel::start().await;
        let first = sentinel.master().await.port();
        let second = sentinel.fail_over().await.port();
        assert_ne!(first, second);
        assert_eq!(sentinel.master().await.port(), second);

        let client = SentinelClient::build(sentinel.sentinel_urls(), MASTER_NAME, None, SentinelServerType::Master);
        let mut connection = client.unwrap().get_async_connection().await.unwrap();
        let written: String = cmd("SET").arg("key").arg("value").query_async(&mut connection).await.unwrap();
        assert_eq!(written, "OK");

        // The old master can only be promoted once it has become a replica.
        let replica = sentinel.servers().iter().find(|server| server.port() == first).unwrap();
        replica.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
        sentinel.until_replicas_are_known().await;
        sentinel.master().await.kill();
        assert_eq!(sentinel.until_another_than(second).await.port(), first);
    }

    #[tokio::test]
    async fn tls_connects_only_with_the_right_authority() {
        let (redis, other, expired) = tokio::join!(TlsServer::start(), TlsServer::start(), TlsServer::expired());
        assert_eq!(ping(&mut try_connect(&redis.client()).await.unwrap()).await.unwrap(), "PONG");
        assert!(try_connect(&redis.client_that_trusts(other.ca_pem())).await.is_err());
        assert!(try_connect(&expired.client()).await.is_err());
    }

    #[tokio::test]
    async fn a_restricted_user_has_exactly_the_permissions_of_the_acl_line() {
        let redis = AclServer::start("ACL SETUSER phalanx on >secret ~ph2:* \\\n  -@all +get +ping").await;
        assert_eq!(redis_cli::redis_command(&redis.url(), &["GET", "ph2:key"]).await.unwrap(), "");
        for denied in [["GET", "key"], ["DEL", "ph2:key"]] {
            assert_eq!(redis_cli::redis_command(&redis.url(), &denied).await.unwrap_err().code(), Some("NOPERM"));
        }
        redis.server().restart().await;
        assert_eq!(redis_cli::redis_command(&redis.url(), &["PING"]).await.unwrap(), "PONG");
    }
}

mod proxy {
    use super::*;

    async fn connected_proxy() -> (RedisProcess, Proxy, MultiplexedConnection) {
        let redis = RedisProcess::start().await;
        let proxy = Proxy::start(redis.address()).await;
        let connection = connect(&proxy.url()).await;
        (redis, proxy, connection)
    }

    #[tokio::test]
    async fn a_proxy_without_faults_forwards_and_counts() {
        let (_redis, proxy, mut connection) = connected_proxy().await;
        let before = proxy.stats();
        assert_eq!(ping(&mut connection).await.unwrap(), "PONG");
        let after = proxy.stats();
        assert_eq!((after.accepted, after.open, after.swallowed), (1, 1, 0));
        assert_eq!(after.to_server - before.to_server, "*1\r\n$4\r\nPING\r\n".len() as u64);
        assert_eq!(after.to_client - before.to_client, "+PONG\r\n".len() as u64);
    }

    #[tokio::test]
    async fn a_stalled_connection_stays_silent_and_a_new_one_works() {
        let (_redis, proxy, mut old) = connected_proxy().await;
        proxy.stall();
        assert!(is_silent(&mut old).await);
        assert!(answers(&mut connect(&proxy.url()).await).await);
        proxy.clear_faults().await;
        assert!(is_silent(&mut old).await);
        assert!(proxy.stats().swallowed > 0);
    }

    #[tokio::test]
    async fn a_stalled_connection_hides_the_death_of_the_server() {
        let (redis, proxy, mut old) = connected_proxy().await;
        proxy.stall();
        redis.kill();
        assert!(is_silent(&mut old).await);
    }

    #[tokio::test]
    async fn when_all_is_stalled_new_connections_are_accepted_and_get_no_reply() {
        let (_redis, proxy, _old) = connected_proxy().await;
        proxy.stall_all();
        let client = Client::open(proxy.url()).unwrap();
        assert!(timeout(A_WHILE, try_connect(&client)).await.is_err());
        proxy.clear_faults().await;
        assert!(answers(&mut connect(&proxy.url()).await).await);
    }

    #[tokio::test]
    async fn reset_connections_break_and_new_ones_work() {
        let (_redis, proxy, mut old) = connected_proxy().await;
        proxy.reset_connections().await;
        assert_eq!(proxy.stats().open, 0);
        assert!(ping(&mut old).await.unwrap_err().is_unrecoverable_error());
        assert!(answers(&mut connect(&proxy.url()).await).await);
    }

    #[tokio::test]
    async fn new_connections_can_be_rejected_while_existing_ones_continue() {
        let (_redis, proxy, mut old) = connected_proxy().await;
        proxy.reject_connections().await;
        let rejected = Client::open(proxy.url()).unwrap();
        assert!(try_connect(&rejected).await.unwrap_err().is_connection_refusal());
        assert!(answers(&mut old).await);
        proxy.clear_faults().await;
        assert!(answers(&mut connect(&proxy.url()).await).await);
    }

    #[tokio::test]
    async fn a_delay_is_added_once_to_each_of_many_replies() {
        let (_redis, proxy, connection) = connected_proxy().await;
        proxy.delay(A_WHILE);
        let start = Instant::now();
        let calls = (0..50).map(|_| {
            let mut connection = connection.clone();
            tokio::spawn(async move { ping(&mut connection).await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        let took = start.elapsed();
        assert!(
            took >= A_WHILE && took < 25 * A_WHILE,
            "{took:?}; fifty times the delay if applied one after the other"
        );
    }

    #[tokio::test]
    async fn replies_can_be_sent_byte_by_byte_and_throttled() {
        let (_redis, proxy, mut connection) = connected_proxy().await;
        proxy.drip(Duration::from_millis(10));
        let start = Instant::now();
        ping(&mut connection).await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(60), "seven bytes with six pauses between them");

        proxy.throttle(10_000);
        let start = Instant::now();
        let text: String = cmd("ECHO").arg("x".repeat(1_000)).query_async(&mut connection).await.unwrap();
        assert_eq!(text.len(), 1_000);
        assert!(start.elapsed() >= Duration::from_millis(90), "a thousand bytes at ten thousand a second");
    }

    #[tokio::test]
    async fn new_connections_can_be_sent_to_another_server() {
        let (_redis, proxy, _old) = connected_proxy().await;
        let other = RedisProcess::start().await;
        other.cli(&["SET", "key", "other"]).await;
        proxy.retarget(other.address());
        let value: String = cmd("GET").arg("key").query_async(&mut connect(&proxy.url()).await).await.unwrap();
        assert_eq!(value, "other");
    }
}

mod child_processes {
    use super::*;

    #[tokio::test]
    async fn a_child_exchanges_lines_and_can_be_stopped_and_killed() {
        let child = ChildProcess::start("sh", &["-c", r#"while read -r line; do echo "got $line"; done"#]);
        assert_eq!(child.ask("one", 10 * SECOND).await, "got one");
        child.stop();
        child.send("two");
        assert!(timeout(A_WHILE, child.recv_line(SECOND)).await.is_err());
        child.resume();
        assert_eq!(child.recv_line(10 * SECOND).await.unwrap(), "got two");
        child.kill();
        assert!(!child.is_running());
        assert_eq!(child.recv_line(10 * SECOND).await, None);
    }

    #[tokio::test]
    async fn a_child_detects_the_end_of_its_input() {
        let child = ChildProcess::start("sh", &["-c", "cat; echo bye"]);
        child.end_input();
        assert_eq!(child.recv_line(10 * SECOND).await.unwrap(), "bye");
        assert_eq!(child.recv_line(10 * SECOND).await, None);
    }

    /// Starts this test again as a child process, which starts a server, and kills that child.
    #[tokio::test]
    async fn children_die_with_the_process_that_started_them() {
        const PART: &str = "PHALANX_TEST_PART";
        const NAME: &str = "child_processes::children_die_with_the_process_that_started_them";
        if std::env::var(PART).is_ok() {
            let redis = RedisProcess::start().await;
            println!("\nserver {} {}", redis.address(), redis.directory().display());
            std::future::pending::<()>().await;
        }
        let program = std::env::current_exe().unwrap();
        let parent = ChildProcess::with(program, &["--exact", NAME, "--nocapture"], &[(PART, "parent")]);
        let server = loop {
            let line = parent.recv_line(10 * SECOND).await.unwrap();
            if let Some(server) = line.strip_prefix("server ") {
                break server.to_owned();
            }
        };
        let (address, directory) = server.split_once(' ').unwrap();
        let mut connection = connect(&format!("redis://{address}")).await;
        parent.kill();
        // The server's death closes the connection; the kernel may close the listener slightly later.
        let hung: RedisResult<()> = cmd("BLPOP").arg("never").arg(10).query_async(&mut connection).await;
        assert!(hung.unwrap_err().is_unrecoverable_error());
        let gone = async {
            while TcpStream::connect(address).is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(10 * SECOND, gone).await.unwrap();
        // The directory is the only thing a killed test leaves behind.
        std::fs::remove_dir_all(directory).unwrap();
    }
}
