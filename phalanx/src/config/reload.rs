//! Reloading of configuration files while calls are running. The picture is in [`config`](super).
//!
//! A dedicated thread sleeps until a folder on the path to a file changes, waits until it is quiet, and reads all sources
//! again. A valid configuration goes through [`Engine::change`](phalanx_core::engine::Engine::change): all or nothing; breakers, buckets, slots and queues keep their
//! state. An invalid one is reported once, as [`EventKind::ConfigRejected`], and the previous configuration stays in force;
//! the same happens when a file is deleted. Policies in code win, as they did when the module was built.
//!
//! No async runtime is needed, and nothing is polled.

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

/// Files that change while they are read are read again, at most this often in one reload: another signal will follow.
const MAX_READS: u32 = 3;

/// Reloads configuration files when they change; returned by [`ResilienceModule::watch_config`]. Dropping it stops the
/// reloading: no change is applied after that.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "toml")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use phalanx::ResilienceModule;
/// use phalanx::config::Config;
///
/// # let folder = std::env::temp_dir().join(format!("phalanx-doc-watch-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join("phalanx.toml");
/// std::fs::write(&path, "[policies.search]\ntimeout = '1s'")?;
/// let loader = Config::loader().file(&path);
/// let module = ResilienceModule::in_memory().config(loader.load()?).build()?;
/// let watcher = module.watch_config(loader)?;
///
/// std::fs::write(&path, "[policies.search]\ntimeout = '2s'")?;
/// watcher.reload_now()?; // does not wait for the file notification
/// assert_eq!(module.describe().policy("search").unwrap().value("timeout").unwrap().value, "\"2s\"");
/// # drop(watcher);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "toml"))]
/// # fn main() {}
/// ```
#[must_use = "dropping it stops the reloading"]
pub struct ConfigWatcher {
    reloader: Arc<Reloader>,
    debounce: Arc<Debounce>,
    thread: Option<JoinHandle<()>>,
}

struct Reloader {
    module: ResilienceModule,
    loader: Loader,
    /// Reloads started so far. A reload that started later has read newer content.
    started: AtomicU64,
    /// The number of the newest reload that was applied.
    applied: AtomicU64,
    /// A hash of the content that was read last, valid or not.
    last_content: Mutex<Option<u64>>,
}

impl ResilienceModule {
    /// Watches the files of a loader and applies every valid change a moment after it was written. The files are read once
    /// at the start, in case they have changed since they were loaded.
    ///
    /// Keep the returned watcher: dropping it stops the reloading.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use phalanx::{ConfigError, ResilienceModule};
    /// # use phalanx::config::Config;
    /// # fn main() -> Result<(), ConfigError> {
    /// let loader = Config::loader().file("phalanx.toml").env();
    /// let module = ResilienceModule::in_memory().config(loader.load()?).build()?;
    /// let watcher = module.watch_config(loader)?;
    /// // …
    /// let change = watcher.reload_now()?; // for example on SIGHUP
    /// println!("{} changed", change.count());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns every mistake in the files as they are now, or why their folders cannot be watched. On error nothing changes.
    #[cfg_attr(docsrs, doc(cfg(feature = "reload")))]
    pub fn watch_config(&self, loader: Loader) -> Result<ConfigWatcher, ConfigError> {
        let debounce = Arc::new(Debounce::default());
        let files = loader.paths().map(Into::into).collect();
        // The watch comes first, so that a change during the initial read is signaled.
        let watch = Watch::new(files, debounce.clone()).map_err(|error| cannot("be watched", &error))?;
        let reloader = Arc::new(Reloader {
            module: self.clone(),
            loader,
            started: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            last_content: Mutex::new(None),
        });
        reloader.load_initially()?;
        let (running, signals) = (reloader.clone(), debounce.clone());
        let thread = thread::Builder::new()
            .name("phalanx-config".to_owned())
            .spawn(move || running.run(&signals, watch))
            .map_err(|error| cannot("be reloaded", &error))?;
        Ok(ConfigWatcher { reloader, debounce, thread: Some(thread) })
    }
}

impl ConfigWatcher {
    /// Reads all sources again now, for example on a signal or an admin request. Emits the same events as a change of the
    /// files; a rejection is emitted once for the same content.
    ///
    /// # Errors
    /// Returns every mistake. On error nothing changes.
    pub fn reload_now(&self) -> Result<ConfigChange, ConfigError> {
        let reload = self.reloader.reload();
        self.reloader.emit(&reload);
        reload.result
    }
}

impl Drop for ConfigWatcher {
    fn drop(&mut self) {
        self.debounce.close();
        // Waits for a reload that is under way, unless an observer drops the watcher on the reloading thread itself.
        if let Some(thread) = self.thread.take().filter(|it| it.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ConfigWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.reloader.loader.paths().collect();
        f.debug_struct("ConfigWatcher").field("files", &files).finish_non_exhaustive()
    }
}

/// The result of one reload.
struct Reload {
    /// Whether the content is the same as that of the reload before.
    unchanged: bool,
    result: Result<ConfigChange, ConfigError>,
}

impl Reloader {
    fn run(&self, debounce: &Debounce, mut watch: Watch) {
        while debounce.wait() {
            // A folder that cannot be watched now is tried again with the next signal, which the other folders on the path
            // still give. A missing file is reported by reading it.
            let _ = watch.refresh();
            if *self.last_content.lock() != Some(self.content()) {
                let reload = self.reload();
                self.emit(&reload);
            }
        }
    }

    fn load_initially(&self) -> Result<(), ConfigError> {
        let reload = self.reload();
        if reload.result.as_ref().is_ok_and(|change| change.count() > 0) {
            self.emit(&reload);
        }
        reload.result.map(drop)
    }

    /// Reads all sources and applies them if they are valid. Holds no lock while events are emitted.
    fn reload(&self) -> Reload {
        let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        let (content, config) = self.read();
        let unchanged = self.last_content.lock().replace(content) == Some(content);
        Reload { unchanged, result: config.and_then(|config| self.apply(config, number)) }
    }

    fn emit(&self, reload: &Reload) {
        match &reload.result {
            Ok(change) => self.module.engine.emit(EventKind::ConfigApplied { changed: change.count() }),
            Err(_) if reload.unchanged => {}
            Err(error) => self.module.engine.emit(EventKind::ConfigRejected { reason: &error.to_string() }),
        }
    }

    /// Reads the configuration and a hash of the content. With several files, all are read at the same state.
    fn read(&self) -> (u64, Result<Config, ConfigError>) {
        let mut content = self.content();
        let mut config = self.loader.load();
        for _ in 1..MAX_READS {
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

    /// Applies the configuration, unless a reload that started later was applied already.
    fn apply(&self, config: Config, number: u64) -> Result<ConfigChange, ConfigError> {
        let mistakes = self.fixed_settings_changed(&config);
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        let outdated = || self.applied.fetch_max(number, Ordering::Relaxed) > number;
        self.module.apply_config_unless(outdated, config)
    }

    /// Returns a mistake for each setting that was fixed when the module was built and has changed.
    fn fixed_settings_changed(&self, config: &Config) -> Vec<Mistake> {
        // Read before the origins are locked: a change holds the engine's policies while it locks the origins.
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
        changed.map(|(path, _)| Mistake::new(path, "cannot change while the service is running: restart it")).collect()
    }
}

fn cannot(what: &str, error: &dyn fmt::Display) -> ConfigError {
    ConfigError { mistakes: vec![Mistake::new("", format!("the files cannot {what}: {error}"))] }
}
