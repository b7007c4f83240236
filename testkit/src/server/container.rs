//! A Redis in a container, through testcontainers.
//!
//! A dropped container is removed. Containers in statics are never dropped, and a test process can be killed; so a shell
//! process in its own process group receives the id of every container, waits until this process ends (its standard input
//! is closed then), and removes what is left.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use testcontainers::bollard::models::{HostConfig, PortBinding};
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};
use tokio::time::timeout;

/// The variable with the name of the image.
pub const IMAGE_VARIABLE: &str = "PHALANX_TEST_REDIS_IMAGE";

const DEFAULT_IMAGE: &str = "redis:7";
const PORT: u16 = 6379;

/// The same configuration as [`RedisProcess`](super::RedisProcess), with debug commands allowed from everywhere, because
/// connections through a published port are not local.
const COMMAND: [&str; 9] =
    ["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no", "--enable-debug-command", "yes"];

/// Pulling an image over a slow network may take minutes; a longer silence would look like a hung suite.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// A running container.
#[derive(Debug)]
pub struct Container {
    host: String,
    port: u16,
    _container: Box<ContainerAsync<GenericImage>>,
}

impl Container {
    /// Starts a container. Returns an error if Docker does not respond or the image can neither be found nor pulled.
    pub async fn start() -> Result<Self, String> {
        let image = std::env::var(IMAGE_VARIABLE).unwrap_or_else(|_| DEFAULT_IMAGE.to_owned());
        let started = timeout(WAIT_TIMEOUT, run(&image)).await.map_err(|_| "no container in time".to_owned());
        let started = started.and_then(|result| result.map_err(|error| error.to_string()));
        started.map_err(|error| format!("{image}: {error}"))
    }

    /// Returns the host that publishes its port. Docker may run on another host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the published port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

async fn run(image: &str) -> testcontainers::core::error::Result<Container> {
    let (name, tag) = split(image);
    let container = GenericImage::new(name, tag)
        .with_exposed_port(PORT.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Ready to accept connections"))
        .with_cmd(COMMAND)
        .with_host_config_modifier(publish)
        .start()
        .await?;
    remove_at_exit(container.id());
    let host = container.get_host().await?.to_string().replace("localhost", "127.0.0.1");
    let port = container.get_host_port_ipv4(PORT).await?;
    Ok(Container { host, port, _container: Box::new(container) })
}

/// Publishes the port on loopback where that works, to keep an unprotected Redis off the network.
fn publish(config: &mut HostConfig) {
    let remote = std::env::var("DOCKER_HOST").is_ok_and(|host| !host.starts_with("unix:"));
    if remote || Path::new("/.dockerenv").exists() {
        // Docker runs elsewhere, or this process runs in a container itself: loopback is a different one.
        return;
    }
    let loopback = PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port: None };
    config.publish_all_ports = Some(false);
    config.port_bindings = Some([(format!("{PORT}/tcp"), Some(vec![loopback]))].into());
}

/// Splits an image into name and tag. A colon before a slash belongs to the registry's port.
fn split(image: &str) -> (&str, &str) {
    image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((image, "latest"))
}

fn remove_at_exit(id: &str) {
    static REMOVER: LazyLock<Mutex<Option<Child>>> = LazyLock::new(|| {
        let remove = r#"while read -r id; do ids="$ids $id"; done; docker rm -f -v $ids"#;
        let remover = Command::new("sh")
            .args(["-c", remove])
            // Ctrl-C goes to the whole process group, which must not include the cleanup process.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Mutex::new(remover.ok())
    });
    let mut remover = REMOVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(input) = remover.as_mut().and_then(|child| child.stdin.as_mut()) {
        let _ = writeln!(input, "{id}");
    }
}
