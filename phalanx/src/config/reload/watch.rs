//! The watch on files: signals when a file may have changed, however it was replaced.
//!
//! Editors and deployments rarely write into a file: they replace it with a rename, and Kubernetes replaces a symbolic link
//! on the path to it. A watch on the file itself would continue to observe the old one. So the *folders* are watched: every
//! folder on the path from the root to the file, and to the targets of links. Replacing a file, a link or a folder on the
//! path signals. Where a folder is missing, those above it are watched.
//!
//! Some folders are busy (the root, `/tmp`). They are watched without their subfolders, and events of names that are not on
//! the path are dropped after one lookup. A parent folder that may not be watched is left out; the folder of the file itself
//! must be watchable.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;

use super::debounce::Debounce;

/// The number of links on one path, the same as in Linux.
const MAX_LINKS: u32 = 40;

/// How often the path is followed again while it keeps changing.
const MAX_PASSES: u32 = 8;

/// What the paths to some files lead through.
#[derive(Debug, Default)]
struct Route {
    /// Folders in which a component of a path can be replaced.
    folders: BTreeSet<PathBuf>,
    /// Folders that contain the files themselves, or the first missing component.
    own: BTreeSet<PathBuf>,
    /// The names of all components.
    names: BTreeSet<OsString>,
}

impl Route {
    /// Adds everything on the path, links resolved.
    fn follow(&mut self, path: &Path) {
        let steps = |path: &Path| path.components().map(|it| it.as_os_str().to_owned()).collect::<VecDeque<_>>();
        let mut ahead = std::path::absolute(path).map_or_else(|_| steps(path), |path| steps(&path));
        let (mut here, mut links) = (PathBuf::new(), 0);
        while let Some(step) = ahead.pop_front() {
            if step == "." {
                continue;
            }
            if step == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&step);
            self.names.insert(step);
            // The root itself is not in a folder.
            if here.has_root() {
                self.folders.insert(here.clone());
            }
            if let Ok(target) = next.read_link() {
                links += 1;
                if links > MAX_LINKS {
                    return self.end_in(here);
                }
                let mut through = steps(&target);
                through.append(&mut ahead);
                ahead = through; // an absolute target begins with the root, and joining it replaces `here`
            } else if ahead.is_empty() || !next.is_dir() {
                return self.end_in(here);
            } else {
                here = next;
            }
        }
    }

    fn end_in(&mut self, folder: PathBuf) {
        self.folders.insert(folder.clone());
        self.own.insert(folder);
    }
}

/// Watches some files and signals the debounce.
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    files: Vec<PathBuf>,
    folders: BTreeSet<PathBuf>,
    names: Arc<Mutex<BTreeSet<OsString>>>,
}

impl Watch {
    /// Watches these files.
    pub(super) fn new(files: Vec<PathBuf>, debounce: Arc<Debounce>) -> notify::Result<Self> {
        let names: Arc<Mutex<BTreeSet<OsString>>> = Arc::default();
        let relevant = names.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error of the watcher may hide a change, so it signals too.
            if event.is_ok_and(|event| !concerns(&event, &relevant.lock())) {
                return;
            }
            debounce.signal();
        })?;
        let mut watch = Self { watcher, files, folders: BTreeSet::new(), names };
        watch.refresh()?;
        Ok(watch)
    }

    /// Watches what is on the paths now. Called before the files are read, so that later changes signal.
    pub(super) fn refresh(&mut self) -> notify::Result<()> {
        let mut result = Ok(());
        for _ in 0..MAX_PASSES {
            let mut route = Route::default();
            self.files.iter().for_each(|file| route.follow(file));
            *self.names.lock() = std::mem::take(&mut route.names);
            // Known folders too: a folder that was replaced by another of the same name is no longer watched.
            result = Ok(());
            for folder in &route.folders {
                let watched = self.watcher.watch(folder, RecursiveMode::NonRecursive);
                if route.own.contains(folder) {
                    result = result.and(watched);
                }
            }
            let stable = result.is_ok() && route.folders == self.folders;
            for gone in self.folders.difference(&route.folders) {
                let _ = self.watcher.unwatch(gone); // fails if the folder no longer exists
            }
            self.folders = route.folders;
            if stable {
                break;
            }
        }
        result
    }
}

/// Returns whether an event concerns a component of the paths. Names are compared, not paths: some systems report paths in
/// another form than they were registered. Reads are ignored, because the loader's own reads would signal.
fn concerns(event: &Event, names: &BTreeSet<OsString>) -> bool {
    let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
    let only_read = matches!(event.kind, EventKind::Access(_)) && event.kind != written;
    let ours = |path: &PathBuf| path.file_name().is_none_or(|name| names.contains(name));
    event.need_rescan() || (!only_read && (event.paths.is_empty() || event.paths.iter().any(ours)))
}

#[cfg(test)]
mod tests {
    use notify::event::ModifyKind;

    use super::*;

    #[test]
    fn only_changes_of_names_on_the_path_signal() {
        let names = BTreeSet::from(["phalanx.toml".into(), "etc".into()]);
        let event = |kind, path: &str| Event::new(kind).add_path(path.into());
        let read = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let renamed = EventKind::Modify(ModifyKind::Any);
        assert!(!concerns(&event(read, "/etc/phalanx.toml"), &names));
        assert!(concerns(&event(written, "/etc/phalanx.toml"), &names));
        assert!(concerns(&event(renamed, "/private/etc/phalanx.toml"), &names));
        assert!(concerns(&event(renamed, "/etc"), &names), "the folder itself");
        assert!(!concerns(&event(renamed, "/etc/access.log"), &names), "another file");
        assert!(concerns(&Event::new(renamed), &names), "an event without a path");
    }

    #[cfg(unix)]
    #[test]
    fn every_folder_in_which_a_component_can_be_replaced_is_watched() {
        use std::os::unix::fs::symlink;

        let root = std::env::temp_dir().join(format!("phalanx-way-{}", std::process::id()));
        let root = std::fs::create_dir_all(&root).and_then(|()| root.canonicalize()).unwrap();
        for folder in ["mount", "releases/7", "elsewhere"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        symlink("../elsewhere/current/phalanx.toml", root.join("mount/phalanx.toml")).unwrap();
        symlink(root.join("releases/7"), root.join("elsewhere/current")).unwrap();
        std::fs::write(root.join("releases/7/phalanx.toml"), "").unwrap();
        let folders = |path: &str| {
            let mut route = Route::default();
            route.follow(&root.join(path));
            assert!(root.ancestors().all(|above| route.folders.contains(above)), "from the root on: {route:?}");
            assert!(route.own.is_subset(&route.folders), "{route:?}");
            let below = |folders: BTreeSet<PathBuf>| {
                let below =
                    folders.into_iter().filter_map(|it| it.strip_prefix(&root).ok()?.to_str().map(str::to_owned));
                below.collect::<Vec<_>>().join(" ")
            };
            (below(route.folders), below(route.own))
        };
        let expected = |folders: &str, own: &str| (folders.to_owned(), own.to_owned());
        assert_eq!(folders("mount/phalanx.toml"), expected(" elsewhere mount releases releases/7", "releases/7"));
        assert_eq!(folders("./mount/../releases/7/x.toml"), expected(" releases releases/7", "releases/7"));
        assert_eq!(folders("missing/below/x.toml"), expected("", ""), "where it would be created");
        symlink("round", root.join("mount/round")).unwrap();
        assert_eq!(folders("mount/round"), expected(" mount", "mount"), "a cycle of links ends");
        std::fs::remove_dir_all(root).unwrap();
    }
}
