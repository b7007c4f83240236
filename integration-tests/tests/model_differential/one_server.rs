//! One server: scripts it knows, lost and saved data, outages and hangs.

use std::cell::Cell;

use phalanx_lua as lua;
use phalanx_store_redis::RedisConnection;
use phalanx_store_redis::transport::ScriptForm;
use phalanx_testkit::FaultyRedis;
use phalanx_testkit::server::RedisProcess;
use tokio::time::{Instant, sleep};

use crate::harness::{CHANNEL, Deployment, MS, SECOND, compare, lock, peek, push, release, script, take};

/// One server, and when its data was last saved.
pub(crate) enum OneServer {
    Model(FaultyRedis, Cell<Option<Instant>>),
    Real(RedisProcess),
}

impl Deployment for OneServer {
    fn model() -> Self {
        Self::Model(FaultyRedis::new(), Cell::default())
    }

    async fn start() -> Self {
        Self::Real(RedisProcess::start().await)
    }
}

impl OneServer {
    pub(crate) fn redis(&self) -> RedisConnection {
        match self {
            Self::Model(model, _) => model.into(),
            Self::Real(server) => redis::Client::open(server.url()).unwrap().into(),
        }
    }

    /// Runs a command of the real server, or changes the model.
    async fn command(&self, words: &[&str], change: impl FnOnce(&FaultyRedis)) {
        match self {
            Self::Model(model, _) => change(model),
            Self::Real(server) => drop(server.cli(words).await),
        }
    }

    /// Publishes a message, as a foreign client does.
    pub(crate) async fn publish(&self, message: &str) {
        self.command(&["PUBLISH", CHANNEL, message], |model| model.publish(CHANNEL, message)).await;
    }

    async fn flush_all(&self) {
        self.command(&["FLUSHALL"], FaultyRedis::flush_all).await;
    }

    async fn flush_scripts(&self) {
        self.command(&["SCRIPT", "FLUSH"], FaultyRedis::flush_scripts).await;
    }

    /// Ends all subscriptions.
    pub(crate) async fn kill_subscriptions(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "pubsub"], FaultyRedis::break_subscriptions).await;
    }

    /// Ends all connections.
    async fn kill_connections(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "pubsub"], FaultyRedis::break_connections).await;
        if let Self::Real(server) = self {
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        }
    }

    /// Denies or allows the user all channels.
    pub(crate) async fn deny_channels(&self, deny: bool) {
        let channels = if deny { "resetchannels" } else { "allchannels" };
        self.command(&["ACL", "SETUSER", "default", channels], |model| model.deny_channels(deny)).await;
    }

    pub(crate) fn hang(&self) {
        match self {
            Self::Model(model, _) => model.hang(),
            Self::Real(server) => server.stop(),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Model(model, _) => model.resume(),
            Self::Real(server) => server.resume(),
        }
    }

    /// Saves the data.
    pub(crate) async fn save(&self) {
        match self {
            Self::Model(_, saved) => {
                saved.set(Some(Instant::now()));
                sleep(MS).await; // later writes have a later time
            }
            Self::Real(server) => drop(server.cli(&["SAVE"]).await),
        }
    }

    /// Kills the server.
    pub(crate) fn stop(&self) {
        match self {
            Self::Model(model, _) => model.stop(),
            Self::Real(server) => server.kill(),
        }
    }

    /// Starts a killed server with the data that was saved last, or without data.
    pub(crate) async fn start_again(&self) {
        match self {
            Self::Model(model, saved) => match saved.get() {
                Some(saved) => model.restart_with_data_of(saved.elapsed()),
                None => model.restart_empty(),
            },
            Self::Real(server) => server.restart().await,
        }
    }
}

#[test]
fn a_script_is_unknown_until_its_source_was_sent_and_again_after_script_flush() {
    let seen = compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        log.send(&redis, ScriptForm::Digest, &[take("a", 1)]).await;
        log.send(&redis, ScriptForm::Source, &[take("a", 1)]).await;
        log.send(&redis, ScriptForm::Digest, &[take("a", 1)]).await;
        // One of a pipeline does not run, the others do.
        log.send(&redis, ScriptForm::Digest, &[take("a", 1), peek("a"), take("a", 1)]).await;
        let other = log.connected(&server.redis()).await;
        log.send(&other, ScriptForm::Digest, &[take("a", 1)]).await;
        server.flush_scripts().await;
        log.send(&redis, ScriptForm::Digest, &[take("a", 1), peek("a")]).await;
        log.run(&other, &[take("a", 1), peek("a"), take("b", 2), peek("b")]).await;
        log.send(&redis, ScriptForm::Digest, &[take("a", 1), peek("a")]).await;
    });
    assert!(seen[1].ends_with("unknown script"), "{seen:?}");
    assert!(seen[7].ends_with("unknown script and unknown script"), "{seen:?}");
}

#[test]
fn flushall_removes_the_keys_and_keeps_the_scripts() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        log.run(&redis, &[take("a", 4), lock("l", "me")]).await;
        server.flush_all().await;
        log.send(&redis, ScriptForm::Digest, &[take("a", 1), lock("l", "other")]).await;
        log.run(&redis, &[peek("a")]).await;
    });
}

#[test]
fn a_restart_without_data_loses_keys_scripts_connections_and_subscriptions() {
    compare::<OneServer>(async |server, log| {
        let old = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&old, &[take("a", 4), lock("l", "me")]).await;
        server.stop();
        server.start_again().await;
        log.receive(&mut subscription, 1).await;
        log.check(&mut subscription).await;
        log.run(&old, &[take("a", 1)]).await;
        let new = log.connected(&server.redis()).await;
        log.send(&new, ScriptForm::Digest, &[take("a", 1)]).await;
        log.run(&new, &[take("a", 1), lock("l", "other")]).await;
        log.run(&old, &[take("a", 1)]).await;
    });
}

#[test]
fn a_restart_with_saved_data_loses_what_was_written_after_the_save() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        log.run(&redis, &[take("a", 2), take("b", 2), lock("l", "me"), lock("m", "me")]).await;
        server.save().await;
        log.run(&redis, &[take("a", 3), take("c", 1), release("l", "me"), lock("n", "me")]).await;
        server.stop();
        server.start_again().await;
        log.run(&redis, &[peek("a")]).await;
        let redis = log.connected(&server.redis()).await;
        log.send(&redis, ScriptForm::Digest, &[peek("a")]).await;
        log.run(&redis, &[peek("a"), peek("b"), peek("c")]).await;
        log.run(&redis, &[lock("l", "other"), lock("m", "me"), lock("n", "other")]).await;
    });
}

#[test]
fn a_stopped_server_breaks_its_connections_and_refuses_new_ones() {
    compare::<OneServer>(async |server, log| {
        let old = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&old, &[take("a", 4)]).await;
        server.save().await;
        server.stop();
        log.receive(&mut subscription, 1).await;
        log.check(&mut subscription).await;
        for _ in 0..2 {
            log.run(&old, &[peek("a")]).await;
            assert!(log.connect(&server.redis()).await.is_none());
            assert!(log.subscribe(&server.redis()).await.is_none());
        }
        server.start_again().await;
        log.run(&old, &[peek("a")]).await;
        let new = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&new, &[peek("a")]).await;
        log.run(&new, &push("one")).await;
        log.receive(&mut subscription, 1).await;
    });
}

#[test]
fn killed_connections_are_broken_and_the_server_keeps_scripts_and_keys() {
    compare::<OneServer>(async |server, log| {
        let old = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&old, &[take("a", 4)]).await;
        server.kill_connections().await;
        log.receive(&mut subscription, 1).await;
        log.run(&old, &[take("a", 1)]).await;
        log.run(&old, &[take("a", 1)]).await;
        let new = log.connected(&server.redis()).await;
        log.send(&new, ScriptForm::Digest, &[take("a", 1)]).await;
    });
}

#[test]
fn a_hung_server_executes_later_what_was_sent_while_it_hung() {
    let seen = compare::<OneServer>(async |server, log| {
        let (one, other) = (log.connected(&server.redis()).await, log.connected(&server.redis()).await);
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&one, &[take("a", 1), lock("l", "me"), peek("a")]).await;
        server.hang();
        let first = log.send_unanswered(&one, &[take("a", 2)]).await;
        let second = log.send_unanswered(&one, &[take("a", 3)]).await;
        let given_up = log.send_unanswered(&other, &[take("b", 4)]).await;
        given_up.abandon();
        drop(other);
        // The kernel accepts the connection, but the server does not reply.
        log.connect_in_vain(&server.redis()).await;
        log.check(&mut subscription).await;
        server.resume();
        log.answered(first).await;
        log.answered(second).await;
        log.run(&one, &[peek("a"), release("l", "me")]).await;
        log.receive(&mut subscription, 1).await;
        log.run_until_changed(&one, peek("b"), "36000000000").await;
        let new = log.connected(&server.redis()).await;
        log.run(&new, &[peek("a"), peek("b")]).await;
    });
    assert_eq!(seen.iter().filter(|step| step.ends_with("no reply")).count(), 4, "{seen:?}");
}

#[test]
fn a_server_that_is_killed_while_it_hangs_executes_nothing_of_what_was_sent() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        log.run(&redis, &[take("a", 1)]).await;
        server.save().await;
        server.hang();
        let pending = log.send_unanswered(&redis, &[take("a", 2)]).await;
        server.stop();
        log.answered(pending).await;
        server.start_again().await;
        let redis = log.connected(&server.redis()).await;
        log.run(&redis, &[peek("a")]).await;
    });
}

#[test]
fn a_script_that_fails_does_not_affect_the_others_of_its_pipeline() {
    let seen = compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        let wrong = || script(&lua::RATE_LIMIT_ACQUIRE, SECOND, &["ph2:{a}"], &["x", "y", "z", "1", "1", "1", "0"]);
        log.run(&redis, &[take("a", 1), wrong(), take("a", 2)]).await;
        log.run(&redis, &[wrong()]).await;
        log.run(&redis, &[peek("a")]).await;
    });
    assert!(seen[2].contains("failed: response error"), "{seen:?}");
}
