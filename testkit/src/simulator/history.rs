//! What happened in a run, in order: the input of the oracles, and the text that two runs of one seed share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use phalanx::RejectionCode;
use phalanx_core::breaker::Phase;
use phalanx_core::rejection::Source;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::lua_server::Reply;
use crate::redis_model::ScriptRun;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Virtual microseconds since the start.
    pub at: u64,
    /// What.
    pub kind: EntryKind,
}

/// What happened. Replicas, policies and faults are numbers into the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are what their names say
pub enum EntryKind {
    FaultBegins {
        fault: usize,
    },
    FaultEnds {
        fault: usize,
    },
    ProcessStarted {
        replica: usize,
    },
    ProcessEnded {
        replica: usize,
    },
    /// A call arrives.
    Started {
        replica: usize,
        policy: usize,
        call: u64,
        cost: u32,
    },
    /// Its first attempt begins.
    Admitted {
        replica: usize,
        policy: usize,
        call: u64,
        cost: u32,
    },
    /// It has its answer.
    Finished {
        replica: usize,
        policy: usize,
        call: u64,
        answer: Answer,
    },
    /// Permits were charged, by a call that cost more than it took or by hand.
    Charged {
        replica: usize,
        permits: u32,
    },
    /// Permits that were charged by hand were given back.
    Discharged {
        replica: usize,
        permits: u32,
    },
    /// Its caller dropped it.
    Dropped {
        replica: usize,
        policy: usize,
        call: u64,
    },
    Transition {
        replica: usize,
        policy: usize,
        #[serde(with = "names::phase")]
        from: Phase,
        #[serde(with = "names::phase")]
        to: Phase,
        epoch: u64,
        break_micros: u64,
    },
    Overridden {
        replica: usize,
        policy: usize,
        to: Option<String>,
    },
    Degraded {
        replica: usize,
        reason: String,
    },
    Recovered {
        replica: usize,
    },
    StateLost {
        replica: usize,
    },
    Replicas {
        replica: usize,
        live: u32,
    },
    ConfigMismatch {
        replica: usize,
    },
    /// Calls were in flight without a share of the fleet's slots.
    ShareLapsed {
        replica: usize,
        policy: usize,
        calls: u32,
    },
    #[serde(skip)]
    Script(Script),
    LockAcquired {
        replica: usize,
        fence: u64,
    },
    /// A write that the holder may do, because its lock is valid by its own clock.
    LockWrite {
        replica: usize,
        fence: u64,
    },
    LockLost {
        replica: usize,
        fence: u64,
    },
    LockReleased {
        replica: usize,
        fence: u64,
    },
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the operation succeeded.
    pub ok: bool,
    /// Why it was rejected.
    #[serde(with = "names::rejected")]
    pub rejected: Option<RejectionCode>,
    /// Where the last decision was made.
    #[serde(with = "names::source")]
    pub source: Source,
    /// Attempts and hedges that were started.
    pub attempts: u32,
    /// Hedges among them.
    pub hedges: u32,
    /// Whether it was a probe.
    pub probe: bool,
}

/// A script that the server has run.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The server's clock, in microseconds.
    pub server: u64,
    /// The replica that sent it.
    pub replica: usize,
    /// Its name.
    pub name: &'static str,
    /// Its first key, as a number in the order of first use.
    pub key: usize,
    /// Of a script on several buckets, which has an entry for each: the place of the key among them, and their number.
    pub place: (usize, usize),
    /// The arguments that are numbers; the others are 0. The first argument of a breaker script is its spec.
    pub args: Vec<f64>,
    /// The numbers of the spec of a breaker script, then those of its claim; of a charge, the number of its second key.
    pub spec: Vec<f64>,
    /// The integers of its reply.
    pub reply: Vec<i64>,
    /// Whether it failed.
    pub failed: bool,
    /// How many of its commands wrote.
    pub writes: u64,
    /// The numbers that it has stored in its first key, if that is a bucket or a breaker: of a breaker the fields of its
    /// first line, value and end of the override (0 if there is none), then the end of each lease.
    pub stored: Vec<f64>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.3} ms  {:?}", self.at as f64 / 1_000.0, self.kind)
    }
}

/// Everything that happened, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// In the order in which it happened.
    pub entries: Vec<Entry>,
}

impl History {
    /// A number that two equal histories share.
    pub fn digest(&self) -> u64 {
        // FNV-1a: the same in every process, unlike the standard library's hasher.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for entry in &self.entries {
            for byte in entry.to_string().bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        hash
    }
}

impl History {
    /// Returns how long each replica took to learn of each trip, in microseconds, sorted.
    pub fn trip_times(&self) -> Vec<u64> {
        let mut tripped: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut times = Vec::new();
        let mut policies: BTreeMap<u64, u64> = BTreeMap::new();
        for entry in &self.entries {
            match &entry.kind {
                EntryKind::Script(script) => {
                    let count = script.reply.get(8).copied().unwrap_or(0).max(0) as usize;
                    let each = script.reply.get(9..).unwrap_or_default().chunks_exact(7).take(count);
                    for transition in each.filter(|transition| transition[1] == 2) {
                        policies.insert(transition[2] as u64, entry.at);
                    }
                }
                EntryKind::Transition { replica, to: Phase::Open, epoch, .. } => {
                    if let Some(at) = policies.get(epoch)
                        && tripped.insert((*replica, *epoch), entry.at).is_none()
                    {
                        times.push(entry.at - at);
                    }
                }
                _ => {}
            }
        }
        times.sort_unstable();
        times
    }
}

/// Collects the history of a run.
#[derive(Clone)]
pub(crate) struct Recorder {
    start: Instant,
    /// Microseconds of the run before `start`.
    passed: u64,
    /// Writes entries to standard output instead of keeping them: the process of a replica.
    writes: bool,
    shared: Arc<Mutex<Collected>>,
}

#[derive(Default)]
struct Collected {
    entries: Vec<Entry>,
    /// Keep only the scripts that changed the phase of a breaker.
    brief: bool,
    /// Scripts in each second.
    per_second: Vec<u64>,
    keys: BTreeMap<Vec<u8>, usize>,
    /// The replica of each link.
    replicas: Vec<usize>,
    calls: u64,
}

impl Recorder {
    /// `brief`: keeps only the scripts that changed the phase of a breaker.
    pub(crate) fn new(brief: bool) -> Self {
        let shared = Collected { brief, ..Collected::default() };
        Self { start: Instant::now(), passed: 0, writes: false, shared: Arc::new(Mutex::new(shared)) }
    }

    /// The recorder of a process of its own: writes a line for each entry. `passed`: microseconds of the run so far;
    /// `calls`: the number before that of its first call.
    #[cfg(feature = "servers")]
    pub(crate) fn to_output(passed: u64, calls: u64) -> Self {
        let shared = Collected { calls, ..Collected::default() };
        Self { start: Instant::now(), passed, writes: true, shared: Arc::new(Mutex::new(shared)) }
    }

    /// Microseconds since the start of the run.
    pub(crate) fn now(&self) -> u64 {
        self.passed + self.start.elapsed().as_micros() as u64
    }

    pub(crate) fn add(&self, kind: EntryKind) {
        let entry = Entry { at: self.now(), kind };
        if self.writes {
            let line = serde_json::to_string(&entry).unwrap_or_default();
            // Whole lines, so that a process that is killed leaves no half of one.
            drop(std::io::Write::write_all(&mut std::io::stdout().lock(), format!("{line}\n").as_bytes()));
        } else {
            self.shared.lock().entries.push(entry);
        }
    }

    /// Adds an entry of another process.
    #[cfg(feature = "servers")]
    pub(crate) fn add_entry(&self, entry: Entry) {
        self.shared.lock().entries.push(entry);
    }

    /// Returns the number of a new call.
    pub(crate) fn next_call(&self) -> u64 {
        let mut shared = self.shared.lock();
        shared.calls += 1;
        shared.calls
    }

    /// Says which replica a link belongs to.
    pub(crate) fn add_link(&self, link: usize, replica: usize) {
        let mut shared = self.shared.lock();
        let links = shared.replicas.len().max(link + 1);
        shared.replicas.resize(links, 0);
        shared.replicas[link] = replica;
    }

    pub(crate) fn add_script(&self, run: &ScriptRun<'_>) {
        self.add_script_at(self.now(), run);
    }

    /// Adds a script that was run at this time, in microseconds since the start.
    pub(crate) fn add_script_at(&self, at: u64, run: &ScriptRun<'_>) {
        let mut shared = self.shared.lock();
        let second = (at / 1_000_000) as usize;
        if shared.per_second.len() <= second {
            shared.per_second.resize(second + 1, 0);
        }
        shared.per_second[second] += u64::from(run.place.0 == 0);
        if shared.brief && !has_transitions(run) {
            return;
        }
        let mut number_of = |key: &Vec<u8>| {
            let next = shared.keys.len();
            *shared.keys.entry(key.clone()).or_insert(next)
        };
        let key = run.keys.first().map_or(0, &mut number_of);
        let account = run.keys.get(1).filter(|_| run.name == "rate_limit_charge").map(number_of);
        let is_breaker = run.name.starts_with("breaker") && run.name != "breaker_abstain";
        let is_bucket = run.name.starts_with("rate_limit");
        let numbers = |text: &[u8]| -> Vec<f64> {
            let text = std::str::from_utf8(text).unwrap_or_default();
            text.split(' ').map(|word| word.parse().unwrap_or(0.0)).collect()
        };
        let args = if is_breaker || is_bucket || run.name == "slots_share" {
            let skipped = if is_breaker { 5 } else { 0 };
            let number =
                |arg: &Vec<u8>| std::str::from_utf8(arg).ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
            run.args.iter().skip(skipped).map(number).collect()
        } else {
            Vec::new()
        };
        let spec = match run.args {
            [spec, claim, ..] if is_breaker => [numbers(spec), numbers(claim)].concat(),
            _ => account.map(|number| number as f64).into_iter().collect(),
        };
        let reply = match run.reply {
            Ok(Reply::Array(parts)) => {
                parts.iter().map_while(|part| if let Reply::Int(int) = part { Some(*int) } else { None }).collect()
            }
            Ok(Reply::Int(int)) => vec![*int],
            _ => Vec::new(),
        };
        let stored = run.stored.filter(|_| run.writes > 0 && (is_breaker || is_bucket));
        let stored =
            stored.map(|text| if is_breaker { breaker_numbers(text) } else { numbers(text) }).unwrap_or_default();
        let replica = shared.replicas.get(run.link).copied().unwrap_or(0);
        let script = Script {
            server: run.at,
            replica,
            name: run.name,
            key,
            place: run.place,
            args,
            spec,
            reply,
            failed: run.reply.is_err(),
            writes: run.writes,
            stored,
        };
        shared.entries.push(Entry { at, kind: EntryKind::Script(script) });
    }

    pub(crate) fn finish(&self) -> (History, Vec<u64>) {
        let mut shared = self.shared.lock();
        // In order already, unless several processes have written it.
        shared.entries.sort_by_key(|entry| entry.at);
        (History { entries: std::mem::take(&mut shared.entries) }, std::mem::take(&mut shared.per_second))
    }
}

/// The fields of a stored breaker that the oracles need: see [`Script::stored`].
fn breaker_numbers(text: &[u8]) -> Vec<f64> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let fields = |line: &str| line.split(' ').map(|word| word.parse().unwrap_or(0.0)).collect::<Vec<f64>>();
    let lines = |letter: &'static str| text.lines().filter(move |line| line.starts_with(letter)).map(fields);
    let mut numbers: Vec<f64> = lines("2 ").next().unwrap_or_default().into_iter().take(15).collect();
    let overridden = lines("o ").next().unwrap_or_else(|| vec![0.0; 5]);
    numbers.extend([overridden[2], overridden[4]]);
    numbers.extend(lines("l ").map(|lease| lease[2]));
    numbers
}

/// Whether the reply of a breaker script contains a transition.
fn has_transitions(run: &ScriptRun<'_>) -> bool {
    match run.reply {
        Ok(Reply::Array(parts)) if run.name.starts_with("breaker") => {
            matches!(parts.get(8), Some(Reply::Int(count)) if *count > 0)
        }
        _ => false,
    }
}

/// Values that entries contain, by their names.
mod names {
    macro_rules! by_name {
        ($module:ident, $type:ty, $all:expr) => {
            pub(super) mod $module {
                use serde::{Deserialize, Deserializer, Serializer, de::Error};

                pub(crate) fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str(value.name())
                }

                pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                    let name = String::deserialize(deserializer)?;
                    let found = $all.into_iter().find(|value| value.name() == name);
                    found.ok_or_else(|| D::Error::custom(format!("{name:?} is not known")))
                }
            }
        };
    }

    by_name!(phase, phalanx_core::breaker::Phase, {
        use phalanx_core::breaker::Phase;
        [Phase::Closed, Phase::Open, Phase::HalfOpen]
    });
    by_name!(source, phalanx_core::rejection::Source, {
        use phalanx_core::rejection::Source;
        [Source::Fleet, Source::Leased, Source::Local, Source::Degraded, Source::Forced, Source::Shadow]
    });

    pub(super) mod rejected {
        use phalanx::RejectionCode;
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        pub(crate) fn serialize<S: Serializer>(code: &Option<RejectionCode>, to: S) -> Result<S::Ok, S::Error> {
            code.map(RejectionCode::name).serialize(to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RejectionCode>, D::Error> {
            let name = Option::<String>::deserialize(from)?;
            Ok(name.and_then(|name| RejectionCode::ALL.into_iter().find(|code| code.name() == name)))
        }
    }
}
