//! Runs one command on one server and returns the reply as text, like `redis-cli`.

use std::fmt::Write;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, RedisResult, Value};

/// Opens a connection, runs a command and returns the reply: nested replies line by line, nil as an empty string.
pub async fn redis_command(url: &str, words: &[&str]) -> RedisResult<String> {
    // Long enough for a DEBUG SLEEP, short enough not to hang the suite on a stopped server.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(2)))
        .set_response_timeout(Some(Duration::from_secs(10)));
    let mut connection = Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(word);
    });
    let value: Value = command.query_async(&mut connection).await?;
    let mut text = String::new();
    write(&mut text, &value.extract_error()?);
    Ok(text.trim_end_matches('\n').to_owned())
}

/// Returns the value of a line `name:value` in the output of INFO or CLUSTER INFO.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

fn write(text: &mut String, value: &Value) {
    let _ = match value {
        Value::Nil => writeln!(text),
        Value::Okay => writeln!(text, "OK"),
        Value::Int(number) => writeln!(text, "{number}"),
        Value::BulkString(bytes) => writeln!(text, "{}", String::from_utf8_lossy(bytes)),
        Value::SimpleString(words) | Value::VerbatimString { text: words, .. } => writeln!(text, "{words}"),
        Value::Array(values) | Value::Set(values) => return values.iter().for_each(|value| write(text, value)),
        other => writeln!(text, "{other:?}"),
    };
}
