//! Follows files while calls are running: a valid change is in force a moment later, anything else changes nothing.
//!
//! A thread of its own sleeps until a folder on the way to a file changes, waits until it is quiet, and reads everything
//! again. What is valid goes through [`Noting::revise`](phalanx_core::engine::Noting::revise): all or nothing, and circuits,
//! buckets, slots and queues keep their state. What is not is told once, as [`EventKind::ConfigRejected`], and the configuration
//! before stays in force; so it does when a file vanishes. The program's own policies win, as they did at the start.
//!
//! No runtime is needed, and nothing is polled.

mod debounce;
mod watch;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use phalanx_core::engine::{ConfigChange, EngineSpec};
use phalanx_core::event::EventKind;
use phalanx_core::policy::validate::{ConfigError, Mistake};

use self::debounce::Debounce;
use self::watch::Watch;
use super::Config;
use super::loader::{Loader, text_of};
use crate::ResilienceModule;
use crate::origin::Origin;

/// Files that change while they are read are read again; but not for ever, the next ring is sure to come.
const LOOKS: u32 = 3;

/// A module that follows files. Dropping it ends that: nothing changes any more once it is dropped.
#[must_use = "dropping it stops following"]
pub struct ConfigWatcher {
    follower: Arc<Follower>,
    bell: Arc<Debounce>,
    thread: Option<JoinHandle<()>>,
}

struct Follower {
    module: ResilienceModule,
    loader: Loader,
    /// Who began to read later has read what is newer.
    begun: AtomicU64,
    in_force: AtomicU64,
    /// What was read last, good or bad.
    judged: Mutex<Option<u64>>,
}

impl ResilienceModule {
    /// Follows the files of a reader: whatever they say from now on is in force a moment after it was written. They are
    /// read once at the beginning, in case they have changed since they were last read.
    ///
    /// Keep what is returned: dropping it stops following.
    ///
    /// ```no_run
    /// # use phalanx::{ConfigError, ResilienceModule};
    /// # use phalanx::config::Config;
    /// # fn main() -> Result<(), ConfigError> {
    /// let loader = Config::loader().file("phalanx.toml").env();
    /// let module = ResilienceModule::in_memory().config(loader.load()?).build()?;
    /// let following = module.watch_config(loader)?;
    /// // …
    /// let applied = following.reload_now()?; // for a program with a signal of its own
    /// println!("{} changed", applied.count());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Every mistake in the files as they are now, or why their folders cannot be watched; nothing is changed then.
    pub fn watch_config(&self, loader: Loader) -> Result<ConfigWatcher, ConfigError> {
        let bell = Arc::new(Debounce::default());
        let files = loader.paths().map(Into::into).collect();
        // First the watch: what is written while we read rings.
        let watch = Watch::over(files, bell.clone()).map_err(|error| cannot("be watched", &error))?;
        let follower = Arc::new(Follower {
            module: self.clone(),
            loader,
            begun: AtomicU64::new(0),
            in_force: AtomicU64::new(0),
            judged: Mutex::new(None),
        });
        follower.begin()?;
        let (listener, ears) = (follower.clone(), bell.clone());
        let thread = thread::Builder::new()
            .name("phalanx-config".to_owned())
            .spawn(move || listener.listen(&ears, watch))
            .map_err(|error| cannot("be followed", &error))?;
        Ok(ConfigWatcher { follower, bell, thread: Some(thread) })
    }
}

impl ConfigWatcher {
    /// Reads everything again now, for programs that have a signal for it. What came of it is told to observers too; a
    /// rejection only if it was not told for the same content before.
    ///
    /// # Errors
    /// Every mistake; nothing is changed then.
    pub fn reload_now(&self) -> Result<ConfigChange, ConfigError> {
        let looked = self.follower.look();
        self.follower.emit(&looked);
        looked.result
    }
}

impl Drop for ConfigWatcher {
    fn drop(&mut self) {
        self.bell.end();
        // Waits for a change that is under way. Not if an observer drops it, who may be called by that very thread.
        if let Some(thread) = self.thread.take().filter(|it| it.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ConfigWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.follower.loader.paths().collect();
        f.debug_struct("Following").field("files", &files).finish_non_exhaustive()
    }
}

/// What came of reading once.
struct Looked {
    /// Whether the content is what was read before.
    known: bool,
    result: Result<ConfigChange, ConfigError>,
}

impl Follower {
    fn listen(&self, bell: &Debounce, mut watch: Watch) {
        while bell.wait() {
            // What cannot be watched now is watched with the next ring, if the rest of the way still rings; what is
            // missing on the way is seen by reading.
            let _ = watch.renew();
            if *self.judged.lock() != Some(self.content()) {
                let looked = self.look();
                self.emit(&looked);
            }
        }
    }

    fn begin(&self) -> Result<(), ConfigError> {
        let looked = self.look();
        if looked.result.as_ref().is_ok_and(|applied| applied.count() > 0) {
            self.emit(&looked);
        }
        looked.result.map(drop)
    }

    /// Reads everything, and applies it if it is valid. No lock is held while observers are told of what changed.
    fn look(&self) -> Looked {
        let turn = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let (content, config) = self.read();
        let known = self.judged.lock().replace(content) == Some(content);
        Looked { known, result: config.and_then(|config| self.take_on(config, turn)) }
    }

    fn emit(&self, looked: &Looked) {
        match &looked.result {
            Ok(applied) => self.module.engine.emit(EventKind::ConfigApplied { changed: applied.count() }),
            Err(_) if looked.known => {}
            Err(error) => self.module.engine.emit(EventKind::ConfigRejected { reason: &error.to_string() }),
        }
    }

    /// What the files say, and a mark by which it is known again. Of several files, all are of the same moment.
    fn read(&self) -> (u64, Result<Config, ConfigError>) {
        let mut content = self.content();
        let mut config = self.loader.load();
        for _ in 1..LOOKS {
            let now = self.content();
            if now == content {
                break;
            }
            (content, config) = (now, self.loader.load());
        }
        (content, config)
    }

    fn content(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.loader.paths().for_each(|path| text_of(path).hash(&mut hasher));
        hasher.finish()
    }

    /// Puts it in the place of what files said before. Who began to read later and was quicker is not overruled.
    fn take_on(&self, config: Config, turn: u64) -> Result<ConfigChange, ConfigError> {
        let mistakes = self.settled(&config);
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        let outdated = || self.in_force.fetch_max(turn, Ordering::Relaxed) > turn;
        self.module.apply_config_unless(outdated, config)
    }

    /// What is settled when a module is built, and would be something else by this.
    fn settled(&self, config: &Config) -> Vec<Mistake> {
        // Asked before the origins are locked: a change holds the engine's policies when it locks them.
        let in_force = self.module.engine.unknown();
        let origins = self.module.origins.lock();
        let by_code = |origin: &Option<Origin>| *origin == Some(Origin::Code);
        let unknown = config.unknown().unwrap_or_default() != in_force;
        let routes = config.max_routes().unwrap_or_else(|| EngineSpec::default().max_routes) != origins.routes;
        let changed = [
            ("unknown", unknown && !by_code(&origins.unknown)),
            ("max_routes", routes && !by_code(&origins.max_routes)),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(path, _)| Mistake::new(path, "cannot change while calls are running: restart for it")).collect()
    }
}

fn cannot(what: &str, error: &dyn fmt::Display) -> ConfigError {
    ConfigError { mistakes: vec![Mistake::new("", format!("the files cannot {what}: {error}"))] }
}
