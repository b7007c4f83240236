//! A server with an additional user that is restricted by an ACL line.
//!
//! The line is written to the server's ACL file, so the user survives a restart, and an invalid line fails the start with
//! Redis' own error message.

use super::redis_process::{Options, RedisProcess};

/// A server and the login of its restricted user.
#[derive(Debug)]
pub struct AclServer {
    server: RedisProcess,
    login: String,
}

impl AclServer {
    /// Starts a server with the user of this line, e.g. `phalanx on >secret ~ph2:* +evalsha`. The line may begin with
    /// `ACL SETUSER` or `user` and may be wrapped, as in the documentation.
    pub async fn start(line: &str) -> Self {
        Self::with(line, Options::new()).await
    }

    /// Starts such a server with options.
    pub async fn with(line: &str, options: Options) -> Self {
        let line = line.replace("\\\n", " ").replace('\n', " ");
        let line = line.trim();
        let line = ["ACL SETUSER", "user"].iter().find_map(|head| line.strip_prefix(head)).unwrap_or(line);
        let words: Vec<_> = line.split_whitespace().collect();
        let name = words.first().expect("the line has a user name");
        let password = words.iter().find_map(|word| word.strip_prefix('>')).unwrap_or_default();
        // The default user keeps all permissions, because the test itself uses it.
        let users = format!("user default on nopass sanitize-payload ~* &* +@all\nuser {}\n", words.join(" "));
        let options = Options::new().file("users.acl", users).set("aclfile", &["users.acl"]).merge(options);
        Self { server: RedisProcess::with(options).await, login: format!("{name}:{password}") }
    }

    /// Returns the server, for use as the unrestricted default user.
    pub fn server(&self) -> &RedisProcess {
        &self.server
    }

    /// Returns the URL of the restricted user.
    pub fn url(&self) -> String {
        format!("redis://{}@127.0.0.1:{}", self.login, self.server.port())
    }
}
