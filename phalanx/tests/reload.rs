//! Files that are watched while calls run: a valid change is applied, an invalid one changes nothing.

#![cfg(all(feature = "reload", feature = "toml"))]
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests may panic

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

/// The events about configuration files.
#[derive(Debug, PartialEq)]
enum ConfigEvent {
    Applied(usize),
    Rejected(String),
}

struct ConfigEvents(UnboundedReceiver<ConfigEvent>);

impl ConfigEvents {
    /// Waits for the next event.
    async fn next(&mut self) -> ConfigEvent {
        tokio::time::timeout(Duration::from_secs(20), self.0.recv()).await.expect("an event in time").unwrap()
    }

    fn try_next(&mut self) -> Option<ConfigEvent> {
        self.0.try_recv().ok()
    }
}

fn observed(builder: ModuleBuilder) -> (ModuleBuilder, ConfigEvents) {
    let (sender, receiver) = unbounded_channel();
    let builder = builder.on_event(move |event: &Event<'_>| {
        let config_event = match event.kind {
            EventKind::ConfigApplied { changed } => ConfigEvent::Applied(changed),
            EventKind::ConfigRejected { reason } => ConfigEvent::Rejected(reason.to_owned()),
            _ => return,
        };
        let _ = sender.send(config_event);
    });
    (builder, ConfigEvents(receiver))
}

/// A module that watches `phalanx.toml` in the folder.
fn watched(folder: &Folder) -> (ResilienceModule, ConfigWatcher, ConfigEvents) {
    let config = loader(folder).load().unwrap();
    let (builder, events) = observed(ResilienceModule::in_memory().config(config));
    let module = builder.build().unwrap();
    let watcher = module.watch_config(loader(folder)).unwrap();
    (module, watcher, events)
}

fn limited(permits: u64) -> String {
    format!("[policies.p.rate_limit]\npermits = {permits}\nper = \"1h\"\n")
}

async fn permits(module: &ResilienceModule) -> Option<u64> {
    module.pipeline("p", ()).unwrap().available_permits().await
}

#[tokio::test]
async fn a_valid_change_reaches_existing_pipelines_and_keeps_their_state() {
    let text = |permits: u64, slots: u32| {
        format!(
            "{}[policies.q.breaker]\nconsecutive_failures = 1\nbreak_duration = \"1h\"\nmin_throughput = {slots}\n\
             [policies.r.bulkhead]\nmax_concurrency = {slots}\nmax_queue = 5\n",
            limited(permits)
        )
    };
    let folder = Folder::new();
    folder.put("phalanx.toml", text(10, 2));
    let (module, _watcher, mut events) = watched(&folder);
    let [p, q, r] = ["p", "q", "r"].map(|name| module.pipeline(name, ()).unwrap());
    for _ in 0..4 {
        p.run(|| after(Duration::ZERO, Ok(1))).await.unwrap();
    }
    let _ = q.run(|| after(Duration::ZERO, Err::<u32, _>(BROKEN))).await;
    let leave = Arc::new(Notify::new());
    let calls: Vec<_> = (0..3).map(|_| occupy(&r, &leave)).collect();
    while r.bulkhead().unwrap() != (BulkheadView { limit: 2, in_use: 2, waiting: 1 }) {
        tokio::task::yield_now().await;
    }

    folder.put("phalanx.toml", text(8, 4));
    assert_eq!(events.next().await, ConfigEvent::Applied(3));
    assert_eq!(p.available_permits().await, Some(6), "the permits left are kept, up to the new burst");
    assert_eq!(code(q.run(|| after(Duration::ZERO, Ok(1))).await), RejectionCode::CircuitOpen, "it is still open");
    assert_eq!(
        r.bulkhead().unwrap(),
        BulkheadView { limit: 4, in_use: 3, waiting: 0 },
        "the waiting call has a slot now"
    );
    assert_eq!([&p, &q, &r].map(|it| it.describe().version), [2, 2, 2]);
    while !calls.iter().all(|guest| guest.is_finished()) {
        leave.notify_waiters();
        tokio::task::yield_now().await;
    }
    assert_eq!(r.bulkhead().unwrap(), BulkheadView { limit: 4, in_use: 0, waiting: 0 });
    assert_eq!(module.run("p", (), || after(Duration::ZERO, Ok(1))).await, Ok(1));
    assert_eq!(events.try_next(), None);
}

/// A call that runs until it is notified.
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
async fn an_invalid_file_changes_nothing_and_is_reported_once() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, watcher, mut events) = watched(&folder);
    let bad = format!("{}burst = 0\n[policies.q]\ntimeuot = \"1s\"\n", limited(5));
    folder.put("phalanx.toml", &bad);
    let ConfigEvent::Rejected(reason) = events.next().await else { panic!("it was applied") };
    assert!(reason.contains("policies.p.rate_limit.burst") && reason.contains("phalanx.toml:4"), "{reason}");
    assert!(reason.contains("policies.q.timeuot"), "all mistakes are reported: {reason}");
    assert_eq!((permits(&module).await, module.policies().len()), (Some(10), 3));

    folder.put("phalanx.toml", &bad); // the same content again
    let error = watcher.reload_now().unwrap_err();
    assert_eq!(error.mistakes.len(), 2, "an explicit reload returns the error every time");
    folder.put("phalanx.toml", limited(7));
    assert_eq!(events.next().await, ConfigEvent::Applied(1), "observers got one event");
    assert_eq!(permits(&module).await, Some(7));
    folder.put("phalanx.toml", &bad);
    assert!(
        matches!(events.next().await, ConfigEvent::Rejected(_)),
        "the same mistake after a valid file is a new event"
    );
}

#[tokio::test]
async fn a_deleted_file_changes_nothing_and_may_come_back() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, _watcher, mut events) = watched(&folder);
    fs::remove_file(folder.path("phalanx.toml")).unwrap();
    assert!(matches!(events.next().await, ConfigEvent::Rejected(reason) if reason.contains("cannot be read")));
    assert_eq!(permits(&module).await, Some(10));
    folder.put("phalanx.toml", limited(10));
    assert_eq!(events.next().await, ConfigEvent::Applied(0));
    // The same for a deleted folder.
    fs::remove_dir_all(folder.root()).unwrap();
    assert!(matches!(events.next().await, ConfigEvent::Rejected(_)));
    fs::create_dir_all(folder.root()).unwrap();
    folder.put("phalanx.toml", limited(9));
    assert_eq!(events.next().await, ConfigEvent::Applied(1));
    assert_eq!(permits(&module).await, Some(9));
}

#[tokio::test]
async fn a_file_written_in_place_is_reloaded() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, _watcher, mut events) = watched(&folder);
    for left in [9, 8, 7] {
        fs::write(folder.path("phalanx.toml"), limited(left)).unwrap();
        assert_eq!(events.next().await, ConfigEvent::Applied(1));
        assert_eq!(permits(&module).await, Some(left));
    }
}

/// Kubernetes mounts `phalanx.toml -> ..data/phalanx.toml` and `..data -> ..<timestamp>`, and swaps the second link.
#[cfg(unix)]
#[tokio::test]
async fn a_file_behind_a_swapped_symlink_is_reloaded() {
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
    let (module, _watcher, mut events) = watched(&folder);
    for (moment, before, left) in [("..2", "..1", 9), ("..3", "..2", 8)] {
        publish(moment, limited(left));
        fs::remove_dir_all(folder.path(before)).unwrap();
        assert_eq!(events.next().await, ConfigEvent::Applied(1));
        assert_eq!(permits(&module).await, Some(left));
    }
    // And a write to the file that the links point to.
    fs::write(folder.path("..3/phalanx.toml"), limited(7)).unwrap();
    assert_eq!(events.next().await, ConfigEvent::Applied(1));
    assert_eq!(permits(&module).await, Some(7));
}

/// A release that is unpacked next to the current one and swapped with it by two renames.
#[tokio::test]
async fn a_file_in_a_swapped_folder_is_reloaded() {
    let folder = Folder::new();
    let unpack = |name: &str, text: String| {
        fs::create_dir_all(folder.path(name).join("conf")).unwrap();
        fs::write(folder.path(name).join("conf/phalanx.toml"), text).unwrap();
    };
    unpack("rel", limited(10));
    let loader = Config::loader().file(folder.path("rel/conf/phalanx.toml"));
    let (builder, mut events) = observed(ResilienceModule::in_memory().config(loader.load().unwrap()));
    let module = builder.build().unwrap();
    let _watcher = module.watch_config(loader).unwrap();
    for left in [9, 8] {
        unpack("rel.new", limited(left));
        fs::rename(folder.path("rel"), folder.path(&format!("rel.{left}"))).unwrap();
        fs::rename(folder.path("rel.new"), folder.path("rel")).unwrap();
        loop {
            match events.next().await {
                ConfigEvent::Applied(changed) => break assert_eq!(changed, 1),
                ConfigEvent::Rejected(reason) => {
                    assert!(reason.contains("cannot be read"), "between the two: {reason}")
                }
            }
        }
        assert_eq!(permits(&module).await, Some(left));
    }
    fs::write(folder.path("rel/conf/phalanx.toml"), limited(7)).unwrap();
    assert_eq!(events.next().await, ConfigEvent::Applied(1), "a write to the file in the new folder");
    assert_eq!(permits(&module).await, Some(7));
}

#[tokio::test]
async fn code_overrides_the_file_at_every_reload() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let config = loader(&folder).load().unwrap();
    let own = Policy::named("p").rate_limit(RateLimitSpec::new(3, 3_600 * SECOND));
    let (builder, mut events) = observed(ResilienceModule::in_memory().config(config).policy(own));
    let module = builder.lever("p", LeverSpec::default().without_retries()).build().unwrap();
    let watcher = module.watch_config(loader(&folder)).unwrap();
    assert_eq!(permits(&module).await, Some(3));

    let text = format!("{}[policies.q]\ntimeout = \"1s\"\n[levers.p]\nforce = \"open\"\n", limited(10));
    folder.put("phalanx.toml", text);
    assert_eq!(events.next().await, ConfigEvent::Applied(1), "only q is new");
    assert_eq!(permits(&module).await, Some(3));
    assert_eq!(module.levers()["p"].force, None);
    let wider = Policy::named("q").timeout(2 * SECOND);
    module.retune(wider).unwrap(); // from now on code owns it
    assert_eq!(watcher.reload_now().unwrap().count(), 0);
    let described = module.pipeline("q", ()).unwrap().describe();
    assert_eq!(described.stages, [StageDescription::Timeout(2 * SECOND)]);
}

#[tokio::test]
async fn levers_in_a_file_are_pulled_and_released() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, _watcher, mut events) = watched(&folder);
    folder.put("phalanx.toml", format!("{}[levers.\"*\"]\nforce = \"open\"\n", limited(10)));
    assert_eq!(events.next().await, ConfigEvent::Applied(1));
    assert_eq!(code(module.run("p", (), || after(Duration::ZERO, Ok(1))).await), RejectionCode::ForcedOpen);
    folder.put("phalanx.toml", limited(10));
    assert_eq!(events.next().await, ConfigEvent::Applied(1));
    assert_eq!(module.run("p", (), || after(Duration::ZERO, Ok(1))).await, Ok(1));
}

#[tokio::test]
async fn settings_that_cannot_change_at_runtime_are_rejected() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let (module, watcher, _events) = watched(&folder);
    folder.put("phalanx.toml", format!("max_routes = 7\nunknown = \"passthrough\"\n{}", limited(5)));
    let error = watcher.reload_now().unwrap_err();
    let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    assert_eq!(paths, ["unknown", "max_routes"]);
    assert_eq!(permits(&module).await, Some(10));
    folder.put("phalanx.toml", format!("max_routes = 10_000\nunknown = \"error\"\n{}", limited(5)));
    watcher.reload_now().unwrap();
    assert_eq!(permits(&module).await, Some(5), "unchanged settings are accepted");
}

#[tokio::test]
async fn a_watcher_applies_changes_made_before_it_started() {
    let folder = Folder::new();
    folder.put("phalanx.toml", limited(10));
    let config = loader(&folder).load().unwrap();
    let (builder, mut events) = observed(ResilienceModule::in_memory().config(config));
    let module = builder.build().unwrap();
    folder.put("phalanx.toml", limited(9));
    let watcher = module.watch_config(loader(&folder)).unwrap();
    assert_eq!((events.next().await, permits(&module).await), (ConfigEvent::Applied(1), Some(9)));
    drop(watcher);
    folder.put("phalanx.toml", limited(8));
    fs::remove_file(folder.path("phalanx.toml")).unwrap();
    assert!(module.watch_config(loader(&folder)).is_err());
    assert_eq!(permits(&module).await, Some(9));
    // A running watcher would hold the module, and with it the sender of the events.
    drop(module);
    let end = tokio::time::timeout(Duration::from_secs(20), events.0.recv()).await.expect("the watcher has ended");
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
        let watcher = module.watch_config(loader).unwrap();
        let paths = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path());
        let mut hostile: Vec<(String, Vec<u8>)> = paths
            .filter(|path| path.extension().is_some_and(|it| it == extension))
            .map(|path| (path.display().to_string(), fs::read(path).unwrap()))
            .collect();
        hostile.push(("large".to_owned(), [good.as_bytes(), &vec![b' '; 2 << 20]].concat()));
        for (what, bytes) in hostile {
            folder.put(&name, bytes);
            assert!(watcher.reload_now().is_err(), "{what}");
            assert_eq!((permits(&module).await, module.policies().len()), (Some(10), 3), "{what}");
            tried += 1;
        }
        fs::remove_file(folder.path(&name)).unwrap();
        fs::create_dir(folder.path(&name)).unwrap();
        assert!(watcher.reload_now().is_err(), "a folder");
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
    let watcher = module.watch_config(loader(&folder)).unwrap();
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
            watcher.reload_now().unwrap();
        }
        drop(watcher);
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
