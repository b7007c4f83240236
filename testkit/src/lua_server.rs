//! An in-process server that runs the shipped scripts of `phalanx-lua` on a manual clock.
//!
//! It embeds Lua 5.1 like Redis, over a keyspace that implements only the commands the scripts use. It converts arguments
//! and replies and rejects globals like Redis, and is fast enough for property tests: hundreds of thousands of scripts a
//! second in a release build. The same properties are also tested on a real Redis.

mod keyspace;
mod numbers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use mlua::{Function, Lua, MultiValue, Table, Value};
use phalanx_core::clock::{Clock, Time};
use phalanx_lua::Script;

pub use self::keyspace::Stored;
use self::keyspace::{CommandReply, Keyspace};

/// The reply of a script, as a client receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nil.
    Nil,
    /// An integer.
    Int(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the elements of an array. Panics on another reply.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Array(parts) => parts,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Returns the integer. Panics on another reply.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// Returns the bytes of a string. Panics on another reply.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }

    /// Returns the integers of a flat array. Panics on another reply.
    pub fn ints(&self) -> Vec<i64> {
        self.parts().iter().map(Self::int).collect()
    }
}

/// The server. Used by shared reference; scripts run one at a time, as in Redis.
#[derive(Debug)]
pub struct LuaServer {
    clock: Clock,
    engine: Mutex<Engine>,
    keyspace: Arc<Mutex<Keyspace>>,
}

#[derive(Debug)]
struct Engine {
    lua: Lua,
    compiled: HashMap<&'static str, Function>,
}

impl Default for LuaServer {
    fn default() -> Self {
        Self::new()
    }
}

impl LuaServer {
    /// Creates an empty server with its own manual clock, set to a time in 2023.
    pub fn new() -> Self {
        let clock = Clock::manual();
        clock.set(Time::from_micros(1_700_000_000_000_000));
        Self::with_clock(clock)
    }

    /// Creates an empty server on this clock.
    pub fn with_clock(clock: Clock) -> Self {
        let keyspace = Arc::new(Mutex::new(Keyspace::default()));
        let lua = Lua::new();
        prepare(&lua, &keyspace).expect("the sandbox is valid");
        Self { clock, engine: Mutex::new(Engine { lua, compiled: HashMap::new() }), keyspace }
    }

    /// Returns its clock.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs a script with the time as an additional argument. The error is the text that a client would receive.
    pub fn run(&self, script: &Script, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Result<Reply, String> {
        assert_eq!(keys.len(), script.keys, "{} takes {} keys", script.name, script.keys);
        let mut engine = lock(&self.engine);
        let now = self.clock.now().as_micros();
        lock(&self.keyspace).set_time(now);
        let time = now.to_string().into_bytes();
        let args = args.iter().chain(std::iter::once(&time));
        engine.run(script, keys, args).map_err(|error| error.to_string())
    }

    /// Takes the messages published since the last call: channels and messages, in order.
    pub fn take_published(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.current_keyspace().take_published()
    }

    /// Writes a value of any type to a key, without a TTL, as another client could.
    pub fn put(&self, key: &[u8], value: Stored) {
        self.current_keyspace().put(key, value);
    }

    /// Returns the string of a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.current_keyspace().stored(key) {
            Some(Stored::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the TTL of a key in milliseconds; none without a key or without a TTL.
    pub fn pttl(&self, key: &[u8]) -> Option<u64> {
        self.current_keyspace().pttl(key)
    }

    /// Removes a key.
    pub fn remove(&self, key: &[u8]) -> bool {
        self.current_keyspace().remove(key)
    }

    /// Removes all keys, like a restart without persistence.
    pub fn flush(&self) {
        *self.current_keyspace() = Keyspace::default();
    }

    /// Returns all keys, sorted.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.current_keyspace().keys()
    }

    fn current_keyspace(&self) -> MutexGuard<'_, Keyspace> {
        let mut keyspace = lock(&self.keyspace);
        keyspace.set_time(self.clock.now().as_micros());
        keyspace
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock has already failed its test.
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
        for (index, value) in values.enumerate() {
            table.raw_set(index + 1, self.lua.create_string(value)?)?;
        }
        Ok(table)
    }
}

/// Adds the `redis` table to Lua and makes access to undefined globals an error, as Redis does.
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

/// Converts the reply of a command to a Lua value.
fn value(lua: &Lua, answer: CommandReply) -> mlua::Result<Value> {
    Ok(match answer {
        CommandReply::Nil => Value::Boolean(false),
        CommandReply::Int(int) => Value::Number(int as f64),
        CommandReply::Bytes(bytes) => Value::String(lua.create_string(bytes)?),
        CommandReply::Ok => {
            let table = lua.create_table()?;
            table.raw_set("ok", "OK")?;
            Value::Table(table)
        }
        CommandReply::Array(parts) => {
            let table = lua.create_table()?;
            for (index, part) in parts.into_iter().enumerate() {
                table.raw_set(index + 1, value(lua, part)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Converts the return value of a script to a reply: numbers lose their fraction, an array ends at its first nil.
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
        other => return Err(mlua::Error::RuntimeError(format!("not a reply: {}", other.type_name()))),
    })
}
