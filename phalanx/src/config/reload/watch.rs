//! Rings when a file may have changed, however it was replaced.
//!
//! Editors and deployments seldom write into a file: they put another one in its place by a rename, and Kubernetes
//! swaps a link on the way to it. A watch on the file itself would go on looking at the old one. So the *folders* are
//! watched, every one on the way from the root to the file and to what links lead to: whatever is put in the place of a
//! file, a link or a folder rings. Where a folder is missing, those above it are watched.
//!
//! Some of them are busy (the root, `/tmp`); they are watched without what is below them, and what happens there to other
//! names than those on the way is dropped at once, so it costs a comparison and wakes nobody who reads. A folder above
//! that we may not watch is left out; that of the file itself must be watched.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;

use super::debounce::Debounce;

/// As many links as Linux follows.
const LINKS: u32 = 40;

/// While what is on the way changes under our eyes, we look again; but not for ever.
const LOOKS: u32 = 8;

/// What a path leads through.
#[derive(Debug, Default)]
struct Way {
    /// In which something on the way can be replaced.
    folders: BTreeSet<PathBuf>,
    /// Those of the files themselves, or of what is missing on the way to them.
    own: BTreeSet<PathBuf>,
    /// How everything on the way is called.
    names: BTreeSet<OsString>,
}

impl Way {
    fn along(&mut self, path: &Path) {
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
            // The root itself is in no folder.
            if here.has_root() {
                self.folders.insert(here.clone());
            }
            if let Ok(target) = next.read_link() {
                links += 1;
                if links > LINKS {
                    return self.ends_in(here);
                }
                let mut through = steps(&target);
                through.append(&mut ahead);
                ahead = through; // an absolute target begins with the root, which takes the place of `here`
            } else if ahead.is_empty() || !next.is_dir() {
                return self.ends_in(here);
            } else {
                here = next;
            }
        }
    }

    fn ends_in(&mut self, folder: PathBuf) {
        self.folders.insert(folder.clone());
        self.own.insert(folder);
    }
}

/// Looks at some files, and rings.
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    files: Vec<PathBuf>,
    folders: BTreeSet<PathBuf>,
    names: Arc<Mutex<BTreeSet<OsString>>>,
}

impl Watch {
    /// A watch over these files.
    pub(super) fn over(files: Vec<PathBuf>, bell: Arc<Debounce>) -> notify::Result<Self> {
        let names: Arc<Mutex<BTreeSet<OsString>>> = Arc::default();
        let known = names.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // What went wrong with watching is a reason to look.
            if event.is_ok_and(|event| !concerns(&event, &known.lock())) {
                return;
            }
            bell.ring();
        })?;
        let mut watch = Self { watcher, files, folders: BTreeSet::new(), names };
        watch.renew()?;
        Ok(watch)
    }

    /// Watches what is on the way now. To be called before the files are read: what changes afterwards rings.
    pub(super) fn renew(&mut self) -> notify::Result<()> {
        let mut result = Ok(());
        for _ in 0..LOOKS {
            let mut way = Way::default();
            self.files.iter().for_each(|file| way.along(file));
            *self.names.lock() = std::mem::take(&mut way.names);
            // Also those we know: one that was replaced by another of its name is not watched any more.
            result = Ok(());
            for folder in &way.folders {
                let watched = self.watcher.watch(folder, RecursiveMode::NonRecursive);
                if way.own.contains(folder) {
                    result = result.and(watched);
                }
            }
            let settled = result.is_ok() && way.folders == self.folders;
            for gone in self.folders.difference(&way.folders) {
                let _ = self.watcher.unwatch(gone); // it may be gone indeed
            }
            self.folders = way.folders;
            if settled {
                break;
            }
        }
        result
    }
}

/// Whether something happened to what is on the way. Names are compared, not paths: some systems tell paths in another
/// form than they were given. That a file is read is no news, and we would hear of ourselves.
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
    fn that_a_file_is_read_is_no_news() {
        let names = BTreeSet::from(["phalanx.toml".into(), "etc".into()]);
        let event = |kind, path: &str| Event::new(kind).add_path(path.into());
        let read = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let renamed = EventKind::Modify(ModifyKind::Any);
        assert!(!concerns(&event(read, "/etc/phalanx.toml"), &names));
        assert!(concerns(&event(written, "/etc/phalanx.toml"), &names));
        assert!(concerns(&event(renamed, "/private/etc/phalanx.toml"), &names));
        assert!(concerns(&event(renamed, "/etc"), &names), "the folder itself");
        assert!(!concerns(&event(renamed, "/etc/access.log"), &names), "somebody else's");
        assert!(concerns(&Event::new(renamed), &names), "who knows where");
    }

    #[cfg(unix)]
    #[test]
    fn the_way_leads_through_every_folder_in_which_something_can_be_swapped() {
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
            let mut way = Way::default();
            way.along(&root.join(path));
            assert!(root.ancestors().all(|above| way.folders.contains(above)), "from the root on: {way:?}");
            assert!(way.own.is_subset(&way.folders), "{way:?}");
            let below = |folders: BTreeSet<PathBuf>| {
                let below =
                    folders.into_iter().filter_map(|it| it.strip_prefix(&root).ok()?.to_str().map(str::to_owned));
                below.collect::<Vec<_>>().join(" ")
            };
            (below(way.folders), below(way.own))
        };
        let expected = |folders: &str, own: &str| (folders.to_owned(), own.to_owned());
        assert_eq!(folders("mount/phalanx.toml"), expected(" elsewhere mount releases releases/7", "releases/7"));
        assert_eq!(folders("./mount/../releases/7/x.toml"), expected(" releases releases/7", "releases/7"));
        assert_eq!(folders("missing/below/x.toml"), expected("", ""), "where it would appear");
        symlink("round", root.join("mount/round")).unwrap();
        assert_eq!(folders("mount/round"), expected(" mount", "mount"), "and nobody goes round for ever");
        std::fs::remove_dir_all(root).unwrap();
    }
}
