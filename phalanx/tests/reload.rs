//! Files that are followed while calls are running: what is valid is in force, what is not changes nothing.

#![cfg(all(feature = "reload", feature = "toml"))]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is how a test says no, in its helpers too

mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use phalanx::config::Config;
use phalanx::config::{ConfigWatcher, Loader};
use phalanx::describe::{BulkheadView, StageDescription};
use phalanx::policy::LeverSpec;
use phalanx::store::Rng;
use phalanx::*;
use support::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};

fn loader(folder: &Folder) -> Loader {
    Config::loader().file(folder.path("phalanx.toml"))
}

/// What observers were told of files.
#[derive(Debug, PartialEq)]
enum Told {
    Applied(usize),
    Rejected(String),
}

struct News(UnboundedReceiver<Told>);

impl News {
    /// The next news, which must come.
    async fn next(&mut self) -> Told {
        tokio::time::timeout(Duration::from_secs(20), self.0.recv()).await.expect("told in time").unwrap()
    }

    fn is_silent(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

fn listening(builder: ModuleBuilder) -> (ModuleBuilder, News) {
    let (tell, told) = unbounded_channel();
    let builder = builder.on_event(move |event: &Event<'_>| {
        let news = match event.kind {
            EventKind::ConfigApplied { changed } => Told::Applied(changed),
            EventKind::ConfigRejected { reason } => Told::Rejected(reason.to_owned()),
            _ => return,
        };
        let _ = tell.send(news);
    });
    (builder, News(told))
}

/// A module that follows `phalanx.toml` of the folder.
fn following(folder: &Folder) -> (ResilienceModule, ConfigWatcher, News) {
    let config = loader(folder).load().unwrap();
    let (builder, news) = listening(ResilienceModule::in_memory().config(config));
    let module = builder.build().unwrap();
    let following = module.watch_config(loader(folder)).unwrap();
    (module, following, news)
}

fn limited(permits: u64) -> String {
    format!("[policies.p.rate_limit]\npermits = {permits}\nper = \"1h\"\n")
}

async fn permits(module: &ResilienceModule) -> Option<u64> {
    module.pipeline("p", ()).unwrap().available_permits().await
}

#[tokio::test]
async fn a_valid_change_reaches_kept_pipelines_and_they_keep_tokens_circuits_and_slots() {
    let text = |permits: u64, slots: u32| {
        format!(
            "{}[policies.q.breaker]\nconsecutive_failures = 1\nbreak_duration = \"1h\"\nmin_throughput = {slots}\n\
             [policies.r.bulkhead]\nmax_concurrency = {slots}\nmax_queue = 5\n",
            limited(permits)
        )
    };
    let folder = Folder::new();
    folder.put("phalanx.toml", text(10, 2));
    let (module, _following, mut news) = following(&folder);
    let [p, q, r] = ["p", "q", "r"].map(|name| module.pipeline(name, ()).unwrap());
    for _ in 0..4 {
        p.run(|| after(Duration::ZERO, Ok(1))).await.unwrap();
    }
    let _ = q.run(|| after(Duration::ZERO, Err::<u32, _>(BROKEN))).await;
    let leave = Arc::new(Notify::new());
    let guests: Vec<_> = (0..3).map(|_| occupy(&r, &leave)).collect();
    while r.bulkhead().unwrap() != (BulkheadView { limit: 2, in_use: 2, waiting: 1 }) {
        tokio::task::yield_now().await;
    }

    folder.put("phalanx.toml", text(8, 4));
    assert_eq!(news.next().await, Told::Applied(3));
    assert_eq!(p.available_permits().await, Some(6), "what was left is left, and no more than fits");
    assert_eq!(code(q.run(|| after(Duration::ZERO, Ok(1))).await), RejectionCode::CircuitOpen, "it is open still");
    assert_eq!(r.bulkhead().unwrap(), BulkheadView { limit: 4, in_use: 3, waiting: 0 }, "who waited has a slot now");
    assert_eq!([&p, &q, &r].map(|it| it.describe().version), [2, 2, 2]);
    while !guests.iter().all(|guest| guest.is_finished()) {
        leave.notify_waiters();
        tokio::task::yield_now().await;
    }
    assert_eq!(r.bulkhead().unwrap(), BulkheadView { limit: 4, in_use: 0, waiting: 0 });
    assert_eq!(module.run("p", (), || after(Duration::ZERO, Ok(1))).await, Ok(1));
    assert!(news.is_silent());
}

/// A call that stays until it is told to leave.
fn occupy(pipeline: &Pipeline, leave: &Arc<Notify>) -> tokio::task::JoinHandle<()> {
    let (pipeline, leave) = (pipeline.clone(), leave.clone());
    tokio::spawn(async move {
        let stay = || async {
            leave.notified().await;
            Ok::<_, Failure>(1)
        };
        assert_eq!(pipeline.run(stay).await, Ok(1));
    })
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_says_why_once() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, following, mut news) = following(&folder);
    let bad = format!("{}burst = 0\n[policies.q]\ntimeuot = \"1s\"\n", limited(5));
    folder.put("phalanx.toml", &bad);
    let Told::Rejected(reason) = news.next().await else { panic!("it was applied") };
    assert!(reason.contains("policies.p.rate_limit.burst") && reason.contains("phalanx.toml:4"), "{reason}");
    assert!(reason.contains("policies.q.timeuot"), "all mistakes: {reason}");
    assert_eq!((permits(&module).await, module.policies().len()), (Some(10), 3));

    folder.put("phalanx.toml", &bad); // the same once more
    let error = following.reload_now().unwrap_err();
    assert_eq!(error.mistakes.len(), 2, "who asks is told each time");
    folder.put("phalanx.toml", limited(7));
    assert_eq!(news.next().await, Told::Applied(1), "observers were told once");
    assert_eq!(permits(&module).await, Some(7));
    folder.put("phalanx.toml", &bad);
    assert!(matches!(news.next().await, Told::Rejected(_)), "it came back, and that is news");
}

#[tokio::test]
async fn a_file_that_vanishes_changes_nothing_and_may_come_back() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, _following, mut news) = following(&folder);
    fs::remove_file(folder.path("phalanx.toml")).unwrap();
    assert!(matches!(news.next().await, Told::Rejected(reason) if reason.contains("cannot be read")));
    assert_eq!(permits(&module).await, Some(10));
    folder.put("phalanx.toml", limited(10));
    assert_eq!(news.next().await, Told::Applied(0));
    // With its folder, and with the folder above.
    fs::remove_dir_all(folder.root()).unwrap();
    assert!(matches!(news.next().await, Told::Rejected(_)));
    fs::create_dir_all(folder.root()).unwrap();
    folder.put("phalanx.toml", limited(9));
    assert_eq!(news.next().await, Told::Applied(1));
    assert_eq!(permits(&module).await, Some(9));
}

#[tokio::test]
async fn a_file_that_is_written_in_place_is_seen() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, _following, mut news) = following(&folder);
    for left in [9, 8, 7] {
        fs::write(folder.path("phalanx.toml"), limited(left)).unwrap();
        assert_eq!(news.next().await, Told::Applied(1));
        assert_eq!(permits(&module).await, Some(left));
    }
}

/// Kubernetes mounts `phalanx.toml -> ..data/phalanx.toml`, `..data -> ..<moment>`, and swaps the second link.
#[cfg(unix)]
#[tokio::test]
async fn a_link_that_is_swapped_on_the_way_is_seen() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let publish = |moment: &str, text: String| {
        fs::create_dir(folder.path(moment)).unwrap();
        fs::write(folder.path(moment).join("phalanx.toml"), text).unwrap();
        symlink(moment, folder.path("..data_tmp")).unwrap();
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
    };
    publish("..1", limited(10));
    symlink("..data/phalanx.toml", folder.path("phalanx.toml")).unwrap();
    let (module, _following, mut news) = following(&folder);
    for (moment, before, left) in [("..2", "..1", 9), ("..3", "..2", 8)] {
        publish(moment, limited(left));
        fs::remove_dir_all(folder.path(before)).unwrap();
        assert_eq!(news.next().await, Told::Applied(1));
        assert_eq!(permits(&module).await, Some(left));
    }
    // And the file itself, which lies somewhere else than where it was looked for.
    fs::write(folder.path("..3/phalanx.toml"), limited(7)).unwrap();
    assert_eq!(news.next().await, Told::Applied(1));
    assert_eq!(permits(&module).await, Some(7));
}

/// A release that is unpacked beside the one in use, and takes its place by two renames.
#[tokio::test]
async fn a_folder_that_is_swapped_on_the_way_is_seen() {
    let folder = Folder::new();
    let unpack = |name: &str, text: String| {
        fs::create_dir_all(folder.path(name).join("conf")).unwrap();
        fs::write(folder.path(name).join("conf/phalanx.toml"), text).unwrap();
    };
    unpack("rel", limited(10));
    let loader = Config::loader().file(folder.path("rel/conf/phalanx.toml"));
    let (builder, mut news) = listening(ResilienceModule::in_memory().config(loader.load().unwrap()));
    let module = builder.build().unwrap();
    let _following = module.watch_config(loader).unwrap();
    for left in [9, 8] {
        unpack("rel.new", limited(left));
        fs::rename(folder.path("rel"), folder.path(&format!("rel.{left}"))).unwrap();
        fs::rename(folder.path("rel.new"), folder.path("rel")).unwrap();
        loop {
            match news.next().await {
                Told::Applied(changed) => break assert_eq!(changed, 1),
                Told::Rejected(reason) => assert!(reason.contains("cannot be read"), "between the two: {reason}"),
            }
        }
        assert_eq!(permits(&module).await, Some(left));
    }
    fs::write(folder.path("rel/conf/phalanx.toml"), limited(7)).unwrap();
    assert_eq!(news.next().await, Told::Applied(1), "and the file where it is now");
    assert_eq!(permits(&module).await, Some(7));
}

#[tokio::test]
async fn what_the_program_says_wins_at_every_reload() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let config = loader(&folder).load().unwrap();
    let own = Policy::named("p").rate_limit(RateLimitSpec::new(3, 3_600 * SECOND));
    let (builder, mut news) = listening(ResilienceModule::in_memory().config(config).policy(own));
    let module = builder.lever("p", LeverSpec::default().without_retries()).build().unwrap();
    let following = module.watch_config(loader(&folder)).unwrap();
    assert_eq!(permits(&module).await, Some(3));

    let text = format!("{}[policies.q]\ntimeout = \"1s\"\n[levers.p]\nforce = \"open\"\n", limited(10));
    folder.put("phalanx.toml", text);
    assert_eq!(news.next().await, Told::Applied(1), "only q is new");
    assert_eq!(permits(&module).await, Some(3));
    assert_eq!(module.levers()["p"].force, None);
    let wider = Policy::named("q").timeout(2 * SECOND);
    module.retune(wider).unwrap(); // now it is the program's
    assert_eq!(following.reload_now().unwrap().count(), 0);
    let described = module.pipeline("q", ()).unwrap().describe();
    assert_eq!(described.stages, [StageDescription::Timeout(2 * SECOND)]);
}

#[tokio::test]
async fn levers_in_a_file_are_pulled_and_released() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, _following, mut news) = following(&folder);
    folder.put("phalanx.toml", format!("{}[levers.\"*\"]\nforce = \"open\"\n", limited(10)));
    assert_eq!(news.next().await, Told::Applied(1));
    assert_eq!(code(module.run("p", (), || after(Duration::ZERO, Ok(1))).await), RejectionCode::ForcedOpen);
    folder.put("phalanx.toml", limited(10));
    assert_eq!(news.next().await, Told::Applied(1));
    assert_eq!(module.run("p", (), || after(Duration::ZERO, Ok(1))).await, Ok(1));
}

#[tokio::test]
async fn what_cannot_change_while_calls_are_running_is_rejected() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, following, _news) = following(&folder);
    folder.put("phalanx.toml", format!("max_routes = 7\nunknown = \"passthrough\"\n{}", limited(5)));
    let error = following.reload_now().unwrap_err();
    let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    assert_eq!(paths, ["unknown", "max_routes"]);
    assert_eq!(permits(&module).await, Some(10));
    folder.put("phalanx.toml", format!("max_routes = 10_000\nunknown = \"error\"\n{}", limited(5)));
    following.reload_now().unwrap();
    assert_eq!(permits(&module).await, Some(5), "these are what they were");
}

#[tokio::test]
async fn who_follows_hears_of_what_was_written_before() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let config = loader(&folder).load().unwrap();
    let (builder, mut news) = listening(ResilienceModule::in_memory().config(config));
    let module = builder.build().unwrap();
    folder.put("phalanx.toml", limited(9));
    let following = module.watch_config(loader(&folder)).unwrap();
    assert_eq!((news.next().await, permits(&module).await), (Told::Applied(1), Some(9)));
    drop(following);
    folder.put("phalanx.toml", limited(8));
    fs::remove_file(folder.path("phalanx.toml")).unwrap();
    assert!(module.watch_config(loader(&folder)).is_err());
    assert_eq!(permits(&module).await, Some(9));
    // Who still followed would hold the module, and with it the other end of the news.
    drop(module);
    let end = tokio::time::timeout(Duration::from_secs(20), news.0.recv()).await.expect("nobody follows any more");
    assert_eq!(end, None);
}

/// The fixtures that `config_hostile.rs` judges one by one, and some that are made on the spot.
#[cfg(all(feature = "yaml", feature = "json"))]
#[tokio::test]
async fn hostile_files_keep_the_old_configuration() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config/hostile");
    let mut tried = 0;
    let good = [
        ("toml", limited(10)),
        ("yaml", "policies: { p: { rate_limit: { permits: 10, per: 1h } } }".to_owned()),
        ("json", r#"{ "policies": { "p": { "rate_limit": { "permits": 10, "per": "1h" } } } }"#.to_owned()),
    ];
    for (extension, good) in good {
        let (folder, name) = (Folder::new(), format!("phalanx.{extension}"));
        folder.put(&name, &good);
        let loader = Config::loader().file(folder.path(&name));
        let module = ResilienceModule::in_memory().config(loader.load().unwrap()).build().unwrap();
        let following = module.watch_config(loader).unwrap();
        let paths = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path());
        let mut hostile: Vec<(String, Vec<u8>)> = paths
            .filter(|path| path.extension().is_some_and(|it| it == extension))
            .map(|path| (path.display().to_string(), fs::read(path).unwrap()))
            .collect();
        hostile.push(("large".to_owned(), [good.as_bytes(), &vec![b' '; 2 << 20]].concat()));
        for (what, bytes) in hostile {
            folder.put(&name, bytes);
            assert!(following.reload_now().is_err(), "{what}");
            assert_eq!((permits(&module).await, module.policies().len()), (Some(10), 3), "{what}");
            tried += 1;
        }
        fs::remove_file(folder.path(&name)).unwrap();
        fs::create_dir(folder.path(&name)).unwrap();
        assert!(following.reload_now().is_err(), "a folder");
        assert_eq!(permits(&module).await, Some(10));
    }
    assert!(tried >= 40, "{tried}");
}

/// Alternates between two configurations under load, a thousand times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_reloads_under_load_lose_no_permit() {
    const PERMITS: u64 = 1_000_000_000;
    let text = |slots: u32, per: &str| {
        format!(
            "[policies.p.bulkhead]\nmax_concurrency = {slots}\nmax_queue = 1000\n\
             [policies.p.rate_limit]\npermits = {PERMITS}\nper = \"{per}\"\n"
        )
    };
    let folder = Folder::new();
    folder.put("phalanx.toml", text(3, "23h"));
    let config = loader(&folder).load().unwrap();
    // Time stands still: every permit that is missing in the end was spent.
    let module = ResilienceModule::in_memory().clock(Clock::manual()).config(config).build().unwrap();
    let following = module.watch_config(loader(&folder)).unwrap();
    let (calls, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let load = |seed: u64| {
        let (pipeline, calls, over) = (module.pipeline("p", ()).unwrap(), calls.clone(), over.clone());
        tokio::spawn(async move {
            let rng = Rng::seeded(seed);
            while !over.load(Ordering::Relaxed) {
                let pauses = (rng.unit() * 4.0) as u32;
                let work = || async {
                    for _ in 0..pauses {
                        tokio::task::yield_now().await;
                    }
                    Ok::<_, Failure>(1)
                };
                assert_eq!(pipeline.run(work).await, Ok(1));
                calls.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let loads: Vec<_> = (0..12).map(load).collect();
    let (done, is_done) = oneshot::channel();
    std::thread::spawn(move || {
        for i in 0..1_000 {
            folder.put("phalanx.toml", if i % 2 == 0 { text(7, "24h") } else { text(2, "23h") });
            following.reload_now().unwrap();
        }
        drop(following);
        done.send(folder).unwrap();
    });
    is_done.await.unwrap();
    over.store(true, Ordering::Relaxed);
    for load in loads {
        tokio::time::timeout(Duration::from_secs(60), load).await.expect("no waiter is lost").unwrap();
    }
    let p = module.pipeline("p", ()).unwrap();
    assert_eq!(p.bulkhead().unwrap(), BulkheadView { limit: 2, in_use: 0, waiting: 0 });
    assert_eq!(p.available_slots(), Some(2));
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls > 1_000, "{calls}");
    assert_eq!(p.available_permits().await, Some(PERMITS - calls), "after {calls} calls");
    assert!(p.describe().version >= 1_000);
}
