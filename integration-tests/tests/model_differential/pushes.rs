//! Pub/sub on one server: order, lost messages, ended and denied subscriptions.

use phalanx_lua as lua;
use phalanx_store_redis::transport::ScriptForm;

use crate::harness::{CHANNEL, NOW, ZERO, compare, key, lock, peek, push, release, script, take};
use crate::one_server::OneServer;

#[test]
fn messages_arrive_in_the_order_of_the_scripts_that_published_them() {
    let seen = compare::<OneServer>(async |server, log| {
        let mut subscriptions = [log.subscribed(&server.redis()).await, log.subscribed(&server.redis()).await];
        let (one, other) = (log.connected(&server.redis()).await, log.connected(&server.redis()).await);
        log.run(&one, &push("one")).await;
        log.run(&other, &[lock("two", "me"), lock("three", "me"), release("three", "me"), release("two", "me")]).await;
        server.publish("foreign").await;
        log.run(&one, &[release("two", "me"), take("a", 1)]).await; // released already: nothing is published
        log.run(&one, &push("four")).await;
        for subscription in &mut subscriptions {
            log.receive(subscription, 5).await;
        }
        server.publish("the last one").await;
        for subscription in &mut subscriptions {
            log.receive(subscription, 1).await;
        }
    });
    let received: Vec<_> = seen.iter().filter_map(|step| step.strip_prefix("receive: ")).collect();
    let all = ["lock one", "lock three", "lock two", "foreign", "lock four"];
    assert_eq!(received, [&all[..], &all[..], &["the last one", "the last one"]].concat());
}

#[test]
fn messages_are_lost_while_not_subscribed() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        log.run(&redis, &push("before")).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&redis, &push("one")).await;
        log.receive(&mut subscription, 1).await;
        drop(subscription);
        log.run(&redis, &push("between")).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&redis, &push("two")).await;
        log.receive(&mut subscription, 1).await;
    });
}

#[test]
fn a_killed_subscription_ends_and_other_connections_stay() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        let mut killed = log.subscribed(&server.redis()).await;
        log.run(&redis, &push("one")).await;
        log.receive(&mut killed, 1).await;
        log.check(&mut killed).await;
        server.kill_subscriptions().await;
        log.run(&redis, &push("lost")).await;
        log.receive(&mut killed, 1).await;
        log.check(&mut killed).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&redis, &push("two")).await;
        log.receive(&mut subscription, 1).await;
    });
}

#[test]
fn a_message_that_is_not_text_is_not_received() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        let (fence, id) = (NOW.as_micros().to_string(), [0xff, 0xfe, b'x']);
        let args: [&[u8]; 4] = [b"me", fence.as_bytes(), CHANNEL.as_bytes(), &id];
        log.run(&redis, &[lock("l", "me"), script(&lua::LOCK_RELEASE, ZERO, &[&key("l")], &args)]).await;
        log.run(&redis, &push("one")).await;
        log.receive(&mut subscription, 1).await;
    });
}

#[test]
fn a_hung_server_delivers_after_its_hang() {
    compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&redis, &[lock("one", "me"), peek("a"), lock("two", "me"), release("two", "me")]).await;
        log.receive(&mut subscription, 1).await;
        server.hang();
        let pending = log.send_unanswered(&redis, &[release("one", "me")]).await;
        log.receive_nothing(&mut subscription).await;
        server.resume();
        log.answered(pending).await;
        log.receive(&mut subscription, 1).await;
        log.check(&mut subscription).await;
    });
}

#[test]
fn a_user_without_channels_can_neither_subscribe_nor_publish_and_loses_its_subscriptions() {
    let seen = compare::<OneServer>(async |server, log| {
        let redis = log.connected(&server.redis()).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&redis, &push("one")).await;
        log.receive(&mut subscription, 1).await;
        server.deny_channels(true).await;
        log.receive(&mut subscription, 1).await;
        assert!(log.subscribe(&server.redis()).await.is_none());
        // The lock is released; only its push is denied.
        log.run(&redis, &[lock("l", "me"), take("a", 1)]).await;
        log.run(&redis, &[release("l", "me"), take("a", 1)]).await;
        log.send(&redis, ScriptForm::Digest, &[lock("l", "other"), peek("a")]).await;
        server.deny_channels(false).await;
        let mut subscription = log.subscribed(&server.redis()).await;
        log.run(&redis, &push("two")).await;
        log.receive(&mut subscription, 1).await;
    });
    assert!(seen.contains(&"subscribe: failed: acl".to_owned()), "{seen:?}");
}
