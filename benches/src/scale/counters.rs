//! CPU time, scripts, bytes and memory of the server, from `INFO`.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use redis::Connection;

use crate::figures::Row;
use crate::monotonic::monotonic;
use crate::server::Server;

/// Reads the counters of a server, over a connection of its own.
pub(crate) struct Probe(Connection);

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// On the machine's monotonic clock, in nanoseconds.
    pub(crate) at: u64,
    /// Seconds of CPU time of the thread that runs the scripts.
    cpu: f64,
    pub(crate) scripts: f64,
    received: f64,
    sent: f64,
    pub(crate) memory: f64,
    /// The length of this reply, which the server counts as sent after it was written.
    reply: f64,
}

/// The difference of two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) span: Duration,
    cpu: f64,
    pub(crate) scripts: f64,
    received: f64,
    sent: f64,
}

impl Probe {
    pub(crate) fn open(server: &Server) -> Result<Self, Box<dyn Error>> {
        Ok(Self(server.client()?.get_connection()?))
    }

    pub(crate) fn read(&mut self) -> Result<Counters, Box<dyn Error>> {
        let mut info = redis::cmd("INFO");
        info.arg("cpu").arg("stats").arg("commandstats").arg("memory");
        let reply: String = info.query(&mut self.0)?;
        Ok(Counters::parse(&reply, monotonic()))
    }

    /// Reads every `step` for `span`, the first time at once.
    pub(crate) fn follow(&mut self, step: Duration, span: Duration) -> Result<Vec<Counters>, Box<dyn Error>> {
        let mut readings = vec![self.read()?];
        let start = readings[0].at;
        while readings.last().is_some_and(|last| Duration::from_nanos(last.at - start) < span) {
            sleep(step);
            readings.push(self.read()?);
        }
        Ok(readings)
    }

    /// Closes all subscriptions and returns their number.
    pub(crate) fn cut_subscriptions(&mut self) -> Result<u32, Box<dyn Error>> {
        Ok(redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query(&mut self.0)?)
    }

    /// Returns the number of subscribed connections.
    pub(crate) fn subscriptions(&mut self) -> Result<usize, Box<dyn Error>> {
        let list: String = redis::cmd("CLIENT").arg("LIST").arg("TYPE").arg("pubsub").query(&mut self.0)?;
        Ok(list.lines().count())
    }
}

impl Counters {
    fn parse(info: &str, at: u64) -> Self {
        let number = |head: &str| {
            let rest = info.lines().find_map(|line| line.strip_prefix(head));
            rest.and_then(|rest| rest.split([',', '\r']).next()?.trim().parse().ok()).unwrap_or(0.0)
        };
        Self {
            at,
            cpu: number("used_cpu_user_main_thread:") + number("used_cpu_sys_main_thread:"),
            scripts: number("cmdstat_evalsha:calls=") + number("cmdstat_eval:calls="),
            received: number("total_net_input_bytes:"),
            sent: number("total_net_output_bytes:"),
            memory: number("used_memory:"),
            reply: info.len() as f64,
        }
    }

    /// Returns counters of which only the scripts are set.
    #[cfg(test)]
    pub(crate) fn of_scripts(at: u64, scripts: f64) -> Self {
        Self { at, cpu: 0.0, scripts, received: 0.0, sent: 0.0, memory: 0.0, reply: 0.0 }
    }

    pub(crate) fn since(&self, earlier: &Self) -> Used {
        Used {
            span: Duration::from_nanos(self.at - earlier.at),
            cpu: self.cpu - earlier.cpu,
            scripts: self.scripts - earlier.scripts,
            received: self.received - earlier.received,
            sent: self.sent - earlier.sent - earlier.reply,
        }
    }
}

impl Used {
    /// Returns the percentage of one core.
    pub(crate) fn cpu_percent(&self) -> f64 {
        100.0 * self.per_s(self.cpu)
    }

    pub(crate) fn scripts_per_s(&self) -> f64 {
        self.per_s(self.scripts)
    }

    /// Adds the rates of scripts and bytes.
    pub(crate) fn figures(&self, row: Row) -> Row {
        row.with("scripts_per_s", self.scripts_per_s())
            .with("received_bytes_per_s", self.per_s(self.received))
            .with("sent_bytes_per_s", self.per_s(self.sent))
    }

    fn per_s(&self, count: f64) -> f64 {
        count / self.span.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn scripts_are_evals_of_both_kinds_and_bytes_leave_out_the_reading_itself() {
        let info = |scripts, sent| {
            format!(
                "# CPU\r\nused_cpu_sys_main_thread:0.5\r\nused_cpu_user_main_thread:1.25\r\n# Stats\r\n\
                 total_net_input_bytes:10\r\ntotal_net_output_bytes:{sent}\r\n# Memory\r\nused_memory:7\r\n\
                 used_memory_human:7B\r\n# Commandstats\r\ncmdstat_evalsha:calls={scripts},usec=9\r\n\
                 cmdstat_eval:calls=2,usec=9\r\n"
            )
        };
        let first = Counters::parse(&info(40, 1_000), 0);
        assert_eq!((first.cpu, first.scripts, first.memory), (1.75, 42.0, 7.0));
        let sent = 1_000 + info(40, 1_000).len() + 600;
        let used = Counters::parse(&info(52, sent), 2_000_000_000).since(&first);
        assert_eq!((used.scripts_per_s(), used.per_s(used.sent), used.cpu_percent()), (6.0, 300.0, 0.0));
    }
}
