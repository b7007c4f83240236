//! What a server has executed, in its order, as `MONITOR` tells it: the scripts, and the commands inside them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A command that a server has executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Executed {
    /// Microseconds since 1970, by the server's clock.
    pub(super) at: u64,
    /// The port of the client; `None` inside a script.
    pub(super) client: Option<u16>,
    pub(super) words: Vec<Vec<u8>>,
}

/// The commands of all servers of a run.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Executed>>>);

impl Log {
    pub(super) fn take(&self) -> Vec<Executed> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Watches one server, until that ends.
pub(super) struct Monitor {
    seen: watch::Receiver<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// Begins to watch. Everything that is executed after this returns is in the log.
    pub(super) async fn attach(address: &str, log: &Log) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"MONITOR\r\n").await?;
        let mut lines = BufReader::new(stream).split(b'\n');
        lines.next_segment().await?; // OK
        let (sender, seen) = watch::channel(Vec::new());
        let log = log.clone();
        let task = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_segment().await {
                let Some(executed) = parse(&line) else { continue };
                if executed.words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"ECHO")) {
                    sender.send_replace(executed.words.get(1).cloned().unwrap_or_default());
                }
                log.0.lock().push(executed);
            }
        });
        Ok(Self { seen, task })
    }

    /// Waits until an `ECHO` of this word was seen, and with it everything before; or until the server is gone.
    pub(super) async fn until(&mut self, word: &str) {
        drop(self.seen.wait_for(|seen| seen == word.as_bytes()).await);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a line such as `+1700000000.123456 [0 127.0.0.1:5555] "GET" "key"`, or `[0 lua]` inside a script.
fn parse(line: &[u8]) -> Option<Executed> {
    let line = line.strip_prefix(b"+")?;
    let open = line.iter().position(|byte| *byte == b'[')?;
    let close = open + line[open..].iter().position(|byte| *byte == b']')?;
    let time: String = std::str::from_utf8(&line[..open]).ok()?.trim().replace('.', "");
    let client = std::str::from_utf8(&line[open + 1..close]).ok()?;
    let port = client.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    Some(Executed { at: time.parse().ok()?, client: port, words: unquote(&line[close + 1..]) })
}

/// Reads words in quotes, with the escapes that Redis prints.
fn unquote(text: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (&mut word, byte) {
            (None, b'"') => word = Some(Vec::new()),
            (None, _) => {}
            (Some(done), b'"') => {
                words.push(std::mem::take(done));
                word = None;
            }
            (Some(word), b'\\') => match bytes.next() {
                Some(b'n') => word.push(b'\n'),
                Some(b'r') => word.push(b'\r'),
                Some(b't') => word.push(b'\t'),
                Some(b'a') => word.push(7),
                Some(b'b') => word.push(8),
                Some(b'x') => {
                    let hex: Vec<u8> = bytes.by_ref().take(2).collect();
                    let value = std::str::from_utf8(&hex).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
                    word.push(value.unwrap_or(0));
                }
                Some(other) => word.push(other),
                None => {}
            },
            (Some(word), byte) => word.push(byte),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_clients_and_of_scripts_are_read_with_their_escapes() {
        let line = br#"+1700000000.123456 [0 127.0.0.1:5555] "EVALSHA" "ab" "1" "k\"\\ \x00\xff\n" ""#;
        let line = [&line[..], b"\"\r"].concat();
        let executed = parse(&line).unwrap();
        assert_eq!((executed.at, executed.client), (1_700_000_000_123_456, Some(5_555)));
        let words: [&[u8]; 5] = [b"EVALSHA", b"ab", b"1", b"k\"\\ \x00\xff\n", b""];
        assert_eq!(executed.words, words);
        assert_eq!(parse(br#"+1.000001 [0 lua] "GET" "k""#).unwrap().client, None);
        for foreign in [&b""[..], b"+OK", b"-ERR", b"+x [", b"+1.2 [0 lua"] {
            assert_eq!(parse(foreign), None);
        }
    }
}
