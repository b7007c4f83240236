//! Reload: policies come from a file that is watched while calls run. A valid change is applied, an invalid one is not.
//!
//! `cargo run --example reload --features toml,reload` prints
//!
//! ```text
//! started: timeout = "1s"
//! applied, 1 policy changed: timeout = "500ms"
//! rejected, nothing changed: timeout = "500ms"
//! applied, 1 policy changed: timeout = "2s"
//! ```

use std::time::Duration;

use phalanx::config::Config;
use phalanx::{Event, EventKind, ResilienceModule};
use tokio::sync::mpsc::unbounded_channel;

fn timeout(module: &ResilienceModule) -> String {
    let described = module.describe();
    described
        .policy("payments")
        .and_then(|policy| policy.value("timeout"))
        .map_or_else(String::new, |it| it.value.clone())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("phalanx-reload-{}.toml", std::process::id()));
    std::fs::write(&path, "[policies.payments]\ntimeout = \"1s\"\n")?;

    let (sender, mut changes) = unbounded_channel();
    let loader = Config::loader().file(&path);
    let module = ResilienceModule::in_memory()
        .config(loader.load()?)
        .on_event(move |event: &Event<'_>| {
            let _ = match event.kind {
                EventKind::ConfigApplied { changed } => sender.send(format!("applied, {changed} policy changed")),
                EventKind::ConfigRejected { .. } => sender.send("rejected, nothing changed".to_owned()),
                _ => Ok(()),
            };
        })
        .build()?;
    let _watcher = module.watch_config(loader)?; // stops when it is dropped
    println!("started: timeout = {}", timeout(&module));

    for text in ["timeout = \"500ms\"", "timeuot = \"3s\"", "timeout = \"2s\""] {
        let next = path.with_extension("new");
        std::fs::write(&next, format!("[policies.payments]\n{text}\n"))?;
        std::fs::rename(&next, &path)?; // in one step: a half-written file is never read
        let change = tokio::time::timeout(Duration::from_secs(10), changes.recv()).await?.ok_or("no event")?;
        println!("{change}: timeout = {}", timeout(&module));
    }
    assert_eq!(timeout(&module), "\"2s\"");
    Ok(std::fs::remove_file(path)?)
}
