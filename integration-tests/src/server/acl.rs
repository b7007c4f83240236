//! A server with one user more, who may do what an ACL line says and no more.
//!
//! The line stands in the server's ACL file, so the user survives a restart, and a line that Redis does not understand
//! fails the start with Redis' own words.

use super::spawned::{Options, Spawned};

/// The server and the restricted user's way to it.
#[derive(Debug)]
pub struct Restricted {
    server: Spawned,
    login: String,
}

impl Restricted {
    /// A server with the user of this line, e.g. `phalanx on >secret ~ph1:* +evalsha`; a leading `ACL SETUSER` or
    /// `user` and breaks of the line are fine, as documentation has them.
    pub async fn start(line: &str) -> Self {
        Self::with(line, Options::new()).await
    }

    /// The same with options.
    pub async fn with(line: &str, options: Options) -> Self {
        let line = line.replace("\\\n", " ").replace('\n', " ");
        let line = line.trim();
        let line = ["ACL SETUSER", "user"].iter().find_map(|head| line.strip_prefix(head)).unwrap_or(line);
        let words: Vec<_> = line.split_whitespace().collect();
        let name = words.first().expect("a line with a name");
        let password = words.iter().find_map(|word| word.strip_prefix('>')).unwrap_or_default();
        // The default user stays as it is: the test itself comes in by that one.
        let users = format!("user default on nopass sanitize-payload ~* &* +@all\nuser {}\n", words.join(" "));
        let options = Options::new().file("users.acl", users).set("aclfile", &["users.acl"]).and(options);
        Self { server: Spawned::with(options).await, login: format!("{name}:{password}") }
    }

    /// The server itself, as the default user who may do all.
    pub fn server(&self) -> &Spawned {
        &self.server
    }

    /// How the restricted user reaches it.
    pub fn url(&self) -> String {
        format!("redis://{}@127.0.0.1:{}", self.login, self.server.port())
    }
}
