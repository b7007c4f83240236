//! Reads numbers, choices and texts from the bytes of an input. An exhausted input returns zeros, so every input is valid.
//!
//! [`Recipe`] writes what [`Input`] reads, for the seeds of the corpus.

use phalanx_core::rng::Rng;

/// Numbers at the edges of what decoders and scripts compute with.
const EDGES: [i64; 24] = [
    i64::MIN,
    i64::MIN + 1,
    -(1 << 62),
    -(1 << 53),
    -(1 << 52) - 1,
    -(1 << 52),
    i32::MIN as i64,
    -1_000_001,
    -2,
    -1,
    1_000_000,
    1_000_001,
    i32::MAX as i64,
    u32::MAX as i64,
    u32::MAX as i64 + 1,
    1 << 48,
    1 << 52,
    (1 << 52) + 1,
    (1 << 53) - 1,
    1 << 53,
    1 << 61,
    1 << 62,
    i64::MAX - 1,
    i64::MAX,
];

/// A time of a server, in microseconds: that of the test beds.
pub const SERVER_NOW: i64 = 1_700_000_003_456_789;

/// The part of an input that has not been read.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Starts at the first byte.
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Returns whether everything has been read.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Reads a number below `n`, at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// Reads a choice.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Reads a truth value.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Reads eight bytes as a number, little endian.
    pub fn raw(&mut self) -> u64 {
        (0..8).fold(0, |sum, place| sum | u64::from(self.byte()) << (8 * place))
    }

    /// Reads a number: small ones, edges and times of a server are as likely as all others together.
    pub fn number(&mut self) -> i64 {
        match self.byte() {
            small @ 0..=95 => i64::from(small),
            high @ 96..=143 => i64::from(high - 96) << 8 | i64::from(self.byte()),
            edge @ 144..=191 => EDGES[usize::from(edge - 144) % EDGES.len()],
            192..=223 => SERVER_NOW + i64::from(self.raw() as i32),
            _ => self.raw() as i64,
        }
    }

    /// Reads a length and as many bytes, at most `max`.
    pub fn bytes(&mut self, max: usize) -> &'a [u8] {
        let length = (self.number().unsigned_abs() as usize).min(max).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    /// Reads a text of at most `max` bytes; bytes that are not UTF-8 are replaced.
    pub fn text(&mut self, max: usize) -> String {
        String::from_utf8_lossy(self.bytes(max)).into_owned()
    }

    /// Reads all that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Writes an input.
#[derive(Clone, Debug, Default)]
pub struct Recipe(Vec<u8>);

impl Recipe {
    /// Starts with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Adds bytes as they are.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, number: i64) -> Self {
        match u8::try_from(number) {
            Ok(small @ 0..=95) => self.0.push(small),
            _ => {
                self.0.push(u8::MAX);
                self.0.extend(number.to_le_bytes());
            }
        }
        self
    }

    /// Adds several numbers.
    #[must_use]
    pub fn numbers(self, numbers: &[i64]) -> Self {
        numbers.iter().fold(self, |recipe, number| recipe.number(*number))
    }

    /// Adds a length and a text.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.number(text.len() as i64).bytes(text.as_bytes())
    }

    /// Returns the input.
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Returns `count` inputs of `length` random bytes behind `start`, by a fixed seed.
pub fn random(start: &[u8], count: usize, length: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    let rng = Rng::seeded(start.iter().fold(7, |seed, byte| seed * 31 + u64::from(*byte)));
    (0..count).map(move |number| {
        let noise = (0..length).map(|_| (rng.next() >> 32) as u8);
        let name = start.iter().map(|byte| format!("{byte:02x}-")).collect::<String>();
        (format!("random-{name}{number}"), start.iter().copied().chain(noise).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_reads_what_a_recipe_wrote() {
        let numbers = [0, 95, 96, -1, i64::MIN, i64::MAX, SERVER_NOW];
        let data = Recipe::default().numbers(&numbers).text("route").done();
        let mut input = Input::new(&data);
        assert_eq!(numbers.map(|_| input.number()), numbers);
        assert_eq!(input.text(9), "route");
        assert!(input.is_empty());
        assert_eq!((input.byte(), input.number(), input.text(9)), (0, 0, String::new()), "zeros at the end");
    }
}
