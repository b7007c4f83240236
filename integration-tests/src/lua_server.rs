//! A Redis in miniature that runs the very scripts of `phalanx-lua`, in this process and on a clock that a test moves.
//!
//! Lua 5.1 as Redis has it, over a keyspace that knows the commands the scripts use and nothing else. It converts
//! arguments and replies as Redis does, rejects globals as Redis does, and is quick enough for property tests:
//! hundreds of thousands of scripts a second in a release build. A real server stays the judge.

mod keyspace;
mod numbers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use mlua::{Function, Lua, MultiValue, Table, Value};
use phalanx_core::clock::{Clock, Time};
use phalanx_lua::Script;

pub use self::keyspace::Stored;
use self::keyspace::{Answer, Keyspace};

/// What a script answers, as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// An integer.
    Int(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// Several answers.
    Array(Vec<Reply>),
}

impl Reply {
    /// The parts of an array.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Array(parts) => parts,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// The integer it is.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// The bytes it is.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }

    /// A flat array of integers.
    pub fn ints(&self) -> Vec<i64> {
        self.parts().iter().map(Self::int).collect()
    }
}

/// The server. Shared by reference; scripts run one after the other, as on a real one.
#[derive(Debug)]
pub struct Server {
    clock: Clock,
    engine: Mutex<Engine>,
    keyspace: Arc<Mutex<Keyspace>>,
}

#[derive(Debug)]
struct Engine {
    lua: Lua,
    compiled: HashMap<&'static str, Function>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// An empty server on a manual clock of its own, which stands at 2023.
    pub fn new() -> Self {
        let clock = Clock::manual();
        clock.set(Time::from_micros(1_700_000_000_000_000));
        Self::on(clock)
    }

    /// An empty server on this clock.
    pub fn on(clock: Clock) -> Self {
        let keyspace = Arc::new(Mutex::new(Keyspace::default()));
        let lua = Lua::new();
        prepare(&lua, &keyspace).expect("the sandbox is ours");
        Self { clock, engine: Mutex::new(Engine { lua, compiled: HashMap::new() }), keyspace }
    }

    /// The clock that it runs on.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs a script, with the time as one more argument. An error is the text a client would see.
    pub fn run(&self, script: &Script, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Result<Reply, String> {
        assert_eq!(keys.len(), script.keys, "{} takes {} keys", script.name, script.keys);
        let mut engine = lock(&self.engine);
        let now = self.clock.now().as_micros();
        lock(&self.keyspace).turn_to(now);
        let time = now.to_string().into_bytes();
        let args = args.iter().chain(std::iter::once(&time));
        engine.run(script, keys, args).map_err(|error| error.to_string())
    }

    /// What was published since this was last asked: channels and messages, in order.
    pub fn published(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.at_present().published()
    }

    /// Writes a value of any type under a key, without a TTL: what somebody else may do.
    pub fn put(&self, key: &[u8], value: Stored) {
        self.at_present().put(key, value);
    }

    /// The string under a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.at_present().stored(key) {
            Some(Stored::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Milliseconds until a key is gone; none without a key or without a TTL.
    pub fn pttl(&self, key: &[u8]) -> Option<u64> {
        self.at_present().pttl(key)
    }

    /// Removes a key.
    pub fn remove(&self, key: &[u8]) -> bool {
        self.at_present().remove(key)
    }

    /// Forgets everything, as a restart without data does.
    pub fn flush(&self) {
        *self.at_present() = Keyspace::default();
    }

    /// Every key there is, in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.at_present().keys()
    }

    fn at_present(&self) -> MutexGuard<'_, Keyspace> {
        let mut keyspace = lock(&self.keyspace);
        keyspace.turn_to(self.clock.now().as_micros());
        keyspace
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A case that failed under the lock has said so already.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Engine {
    fn run<'a>(
        &mut self,
        script: &Script,
        keys: &[Vec<u8>],
        args: impl Iterator<Item = &'a Vec<u8>>,
    ) -> mlua::Result<Reply> {
        let function = match self.compiled.get(script.virtual_source) {
            Some(function) => function.clone(),
            None => {
                let function = self.lua.load(script.virtual_source).set_name(script.name).into_function()?;
                self.compiled.insert(script.virtual_source, function.clone());
                function
            }
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.strings(keys.iter())?)?;
        globals.raw_set("ARGV", self.strings(args)?)?;
        reply(function.call(())?)
    }

    fn strings<'a>(&self, values: impl Iterator<Item = &'a Vec<u8>>) -> mlua::Result<Table> {
        let table = self.lua.create_table()?;
        for (place, value) in values.enumerate() {
            table.raw_set(place + 1, self.lua.create_string(value)?)?;
        }
        Ok(table)
    }
}

/// Gives Lua its `redis`, and takes away what a script must not do: make or miss a global.
fn prepare(lua: &Lua, keyspace: &Arc<Mutex<Keyspace>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    for (name, caught) in [("call", false), ("pcall", true)] {
        let keyspace = Arc::clone(keyspace);
        let run = move |lua: &Lua, args: MultiValue| command(lua, &keyspace, args, caught);
        redis.set(name, lua.create_function(run)?)?;
    }
    let error_reply = lua.create_function(|lua, text: mlua::LuaString| {
        let table = lua.create_table()?;
        table.set("err", text)?;
        Ok(table)
    })?;
    redis.set("error_reply", error_reply)?;
    lua.globals().set("redis", redis)?;
    lua.globals().set("KEYS", false)?;
    lua.globals().set("ARGV", false)?;
    lua.load(
        "setmetatable(_G, {
            __newindex = function(_, name) error('Attempt to modify a readonly table: ' .. name, 2) end,
            __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. name, 2) end,
        })",
    )
    .exec()
}

fn command(lua: &Lua, keyspace: &Mutex<Keyspace>, args: MultiValue, caught: bool) -> mlua::Result<Value> {
    let args = args.iter().map(argument).collect::<mlua::Result<Vec<_>>>()?;
    match lock(keyspace).execute(&args) {
        Ok(answer) => value(lua, answer),
        Err(error) if caught => {
            let table = lua.create_table()?;
            table.raw_set("err", error)?;
            Ok(Value::Table(table))
        }
        Err(error) => Err(mlua::Error::RuntimeError(error)),
    }
}

fn argument(value: &Value) -> mlua::Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) => Ok(numbers::text(*number).into_bytes()),
        _ => {
            let error = "ERR Lua redis lib command arguments must be strings or integers";
            Err(mlua::Error::RuntimeError(error.to_owned()))
        }
    }
}

/// What a command answers, as Lua sees it.
fn value(lua: &Lua, answer: Answer) -> mlua::Result<Value> {
    Ok(match answer {
        Answer::Nil => Value::Boolean(false),
        Answer::Int(int) => Value::Number(int as f64),
        Answer::Bytes(bytes) => Value::String(lua.create_string(bytes)?),
        Answer::Ok => {
            let table = lua.create_table()?;
            table.raw_set("ok", "OK")?;
            Value::Table(table)
        }
        Answer::Array(parts) => {
            let table = lua.create_table()?;
            for (place, part) in parts.into_iter().enumerate() {
                table.raw_set(place + 1, value(lua, part)?)?;
            }
            Value::Table(table)
        }
    })
}

/// What a script returns, as a client sees it: numbers lose their fraction, an array ends at its first nil.
fn reply(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(int) => Reply::Int(int),
        Value::Number(number) => Reply::Int(number as i64),
        Value::String(text) => Reply::Bytes(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Value::String(error) = table.raw_get("err")? {
                return Err(mlua::Error::RuntimeError(error.to_string_lossy()));
            }
            if let Value::String(status) = table.raw_get("ok")? {
                return Ok(Reply::Bytes(status.as_bytes().to_vec()));
            }
            let mut parts = Vec::new();
            loop {
                match table.raw_get(parts.len() + 1)? {
                    Value::Nil => break,
                    part => parts.push(reply(part)?),
                }
            }
            Reply::Array(parts)
        }
        other => return Err(mlua::Error::RuntimeError(format!("no reply: {}", other.type_name()))),
    })
}
