//! The server program that tests start: `redis-server` from the path, or another engine.
//!
//! [`SERVER_VARIABLE`] names another program: an older or newer Redis, or a Valkey. Engines differ in their settings, so
//! the program is asked for its name and version once.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::process;

/// The variable with the path of the server program. Unset: `redis-server` from the path.
pub const SERVER_VARIABLE: &str = "PHALANX_TEST_REDIS_SERVER";

/// A server program, its name and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    program: PathBuf,
    name: String,
    version: (u32, u32, u32),
}

impl Engine {
    /// Returns the engine that tests start; `None` if no `redis-server` is installed.
    ///
    /// Panics if [`SERVER_VARIABLE`] names a program that is no server: tests on another engine than the one asked for
    /// would prove nothing.
    pub fn installed() -> Option<&'static Self> {
        static ENGINE: LazyLock<Option<Engine>> = LazyLock::new(Engine::find);
        ENGINE.as_ref()
    }

    /// Returns whether [`SERVER_VARIABLE`] names a program.
    pub fn is_chosen() -> bool {
        chosen().is_some()
    }

    /// Returns the program.
    pub fn program(&self) -> &std::path::Path {
        &self.program
    }

    /// Returns `redis` or `valkey`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns major, minor and patch version.
    pub const fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Whether it has what Redis 7.0 introduced. Valkey began as Redis 7.2.
    pub fn is_redis_7_or_later(&self) -> bool {
        self.version.0 >= 7
    }

    fn find() -> Option<Self> {
        let program = match chosen() {
            Some(path) => PathBuf::from(path),
            None => process::find("redis-server")?,
        };
        let output = Command::new(&program).arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let parsed = parse(&text).map(|(name, version)| Self { program: program.clone(), name, version });
        Some(parsed.unwrap_or_else(|| panic!("{} is no Redis or Valkey server: {text:?}", program.display())))
    }
}

fn chosen() -> Option<String> {
    std::env::var(SERVER_VARIABLE).ok().filter(|path| !path.is_empty())
}

/// Parses the output of `--version`, e.g. `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 …`.
fn parse(text: &str) -> Option<(String, (u32, u32, u32))> {
    let (name, rest) = text.split_once(" server v=")?;
    let mut parts = rest.split_whitespace().next()?.split('.').map(|part| part.parse().ok());
    let mut next = || parts.next().flatten();
    let (major, minor) = (next()?, next()?);
    Some((name.to_lowercase(), (major, minor, next().unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_version_are_read_from_what_the_program_prints() {
        let redis = "Redis server v=6.2.14 sha=40305114:0 malloc=libc bits=64 build=dff95a8e7a99d269\n";
        assert_eq!(parse(redis), Some(("redis".to_owned(), (6, 2, 14))));
        let valkey = "Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64 build=1536df31c0395150\n";
        assert_eq!(parse(valkey), Some(("valkey".to_owned(), (9, 1, 2))));
        assert_eq!(parse("GNU bash, version 5.2.15"), None);
    }
}
