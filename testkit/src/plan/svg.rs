//! Plots of a step as SVG: calls, rejections by code, latency percentiles and breaker phases over time.
//!
//! Everything is in the file: no scripts, no foreign fonts, no style sheets from elsewhere. Lines differ in their dashes and
//! markers as well as in colour, each is named beside its panel, and the colours follow a light or dark background.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::evidence::{Phases, Slice, StepEvidence};

const WIDTH: f64 = 980.0;
/// The plotting area, between the labels of the axis and the names of the lines.
const LEFT: f64 = 96.0;
const RIGHT: f64 = 756.0;
const TOP: f64 = 84.0;
const PANEL: f64 = 120.0;
const GAP: f64 = 62.0;
/// Lines of a panel that are named one by one.
const MAX_LINES: usize = 6;
/// Markers on a line.
const MARKERS: usize = 9;
/// The distance between lines of a panel that may lie on each other.
const APART: f64 = 3.0;

/// Dashes of the lines of a panel, in their order.
const DASHES: [&str; MAX_LINES] = ["none", "7 3", "2 3", "9 3 2 3", "14 4", "4 2 1 2"];

const STYLE: &str = "\
    svg{--ink:#1f2328;--quiet:#59636e;--grid:#d1d9e0;--paper:#ffffff;--l0:#0057a8;--l1:#b34700;--l2:#00705a;--l3:#8f3b76;\
    --l4:#6b5a00;--l5:#444a52}\
    @media (prefers-color-scheme:dark){svg{--ink:#e6edf3;--quiet:#9da7b1;--grid:#3d444d;--paper:#0d1117;--l0:#6cb6ff;\
    --l1:#ff9e64;--l2:#4fd1b5;--l3:#e29bd0;--l4:#e3c84a;--l5:#c3ccd5}}\
    text{font-family:sans-serif;font-size:12px;fill:var(--ink)}\
    .quiet{fill:var(--quiet)}.title{font-size:17px;font-weight:bold}.panel{font-weight:bold}\
    .grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--ink);stroke-width:1;fill:none}\
    .paper{fill:var(--paper)}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
    .hatch{stroke:var(--quiet);stroke-width:1;opacity:.55}.edge{stroke:var(--quiet);stroke-width:1;stroke-dasharray:3 3}\
    .c0{stroke:var(--l0)}.c1{stroke:var(--l1)}.c2{stroke:var(--l2)}.c3{stroke:var(--l3)}.c4{stroke:var(--l4)}\
    .c5{stroke:var(--l5)}.mark{fill:var(--paper);stroke-width:1.5}";

/// One line of a panel: a value for each point in time, with gaps.
struct Line {
    name: String,
    points: Vec<Option<(f64, f64)>>,
    /// Drawn as steps instead of straight lines between the points.
    stepped: bool,
}

/// One panel: lines over the time of the step.
struct Panel {
    title: &'static str,
    unit: &'static str,
    lines: Vec<Line>,
    /// The names of the values, for an axis without numbers.
    levels: Option<[&'static str; 3]>,
}

/// Draws the step.
pub(super) fn draw(step: &StepEvidence) -> String {
    let panels = [calls(&step.slices), rejections(&step.slices), latencies(&step.slices), phases(step)];
    let seconds = step.warmup_s + step.duration_s + step.recovery_s;
    let height = TOP + panels.len() as f64 * (PANEL + GAP) + 8.0;
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">{}: {} on {}</title>\n\
         <desc id=\"d\">{}</desc>\n<style>{STYLE}</style>\n<defs><pattern id=\"h\" width=\"8\" height=\"8\" \
         patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" \
         y2=\"8\"/></pattern></defs>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        Xml(&step.id),
        Xml(&step.fault),
        Xml(&step.target),
        Xml(&description(step)),
    );
    let _ = writeln!(
        svg,
        "<text class=\"title\" x=\"{LEFT}\" y=\"28\">{}</text>\n<text class=\"quiet\" x=\"{LEFT}\" y=\"48\">\
         fault {} on {}, hatched: from {} s to {} s</text>",
        Xml(&step.id),
        Xml(&step.fault),
        Xml(&short(&step.target)),
        number(step.warmup_s),
        number(step.warmup_s + step.duration_s)
    );
    for (index, panel) in panels.iter().enumerate() {
        let top = TOP + index as f64 * (PANEL + GAP);
        let fault = (step.warmup_s, step.warmup_s + step.duration_s);
        Frame { top, seconds: seconds.max(1.0), most: panel.most() }.draw(panel, fault, &mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Describes the plot in words.
fn description(step: &StepEvidence) -> String {
    let mut words =
        format!("{} of {} expectations met.", step.verdicts.iter().filter(|it| it.passed).count(), step.verdicts.len());
    for it in &step.policies {
        let _ = write!(words, " {}: {} calls during the fault, {} served.", it.policy, it.offered, it.served);
    }
    words
}

fn rate(slice: &Slice, count: u64) -> Option<(f64, f64)> {
    Some((slice.at_s + slice.length_s / 2.0, count as f64 / slice.length_s.max(0.001)))
}

fn calls(slices: &[Slice]) -> Panel {
    let line = |name: &str, count: fn(&Slice) -> u64| Line {
        name: name.to_owned(),
        points: slices.iter().map(|slice| rate(slice, count(slice))).collect(),
        stepped: false,
    };
    let lines = vec![
        line("offered", |slice| slice.offered),
        line("admitted", |slice| slice.admitted),
        line("served", |slice| slice.served),
        line("failed by the dependency", |slice| slice.failed),
    ];
    Panel { title: "Calls", unit: "calls per second", lines, levels: None }
}

fn rejections(slices: &[Slice]) -> Panel {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (code, count) in slices.iter().flat_map(|slice| &slice.rejected) {
        *totals.entry(code).or_default() += count;
    }
    let mut codes: Vec<(&str, u64)> = totals.into_iter().collect();
    codes.sort_by_key(|(code, count)| (std::cmp::Reverse(*count), *code));
    let named = if codes.len() > MAX_LINES { MAX_LINES - 1 } else { codes.len() };
    let of = |slice: &Slice, codes: &[(&str, u64)]| -> u64 {
        codes.iter().filter_map(|(code, _)| slice.rejected.get(code)).sum()
    };
    let line = |name: String, codes: &[(&str, u64)]| {
        let points = slices.iter().map(|slice| rate(slice, of(slice, codes))).collect();
        Line { name, points, stepped: false }
    };
    let mut lines: Vec<Line> = codes[..named].iter().map(|code| line(code.0.to_owned(), &[*code])).collect();
    if codes.len() > named {
        lines.push(line(format!("{} other codes", codes.len() - named), &codes[named..]));
    }
    Panel { title: "Rejected or cut off, by code", unit: "calls per second", lines, levels: None }
}

fn latencies(slices: &[Slice]) -> Panel {
    let line = |name: &str, value: fn(&Slice) -> Option<f64>| Line {
        name: name.to_owned(),
        points: slices
            .iter()
            .map(|slice| value(slice).map(|value| (slice.at_s + slice.length_s / 2.0, value)))
            .collect(),
        stepped: false,
    };
    let lines =
        vec![line("p50", |slice| slice.p50_ms), line("p95", |slice| slice.p95_ms), line("p99", |slice| slice.p99_ms)];
    Panel { title: "Latency of admitted calls", unit: "milliseconds", lines, levels: None }
}

fn phases(step: &StepEvidence) -> Panel {
    let end = step.warmup_s + step.duration_s + step.recovery_s;
    let level = |phase: &str| match phase {
        "open" => 2.0,
        "half_open" => 1.0,
        _ => 0.0,
    };
    let line = |policy: &str, Phases(phases): &Phases| {
        let mut points = vec![Some((0.0, 0.0))];
        points.extend(phases.iter().map(|(at, phase)| Some((at.min(end), level(phase)))));
        points.push(Some((end, phases.last().map_or(0.0, |(_, phase)| level(phase)))));
        Line { name: short(policy), points, stepped: true }
    };
    // Breakers that moved come first: a panel names only so many.
    let mut policies: Vec<_> = step.policies.iter().collect();
    policies.sort_by_key(|policy| policy.phases.0.is_empty());
    let lines = policies.iter().take(MAX_LINES).map(|it| line(&it.policy, &it.phases)).collect();
    Panel { title: "Breaker phase", unit: "phase", lines, levels: Some(["closed", "half-open", "open"]) }
}

impl Panel {
    /// Returns the top of the axis.
    fn most(&self) -> f64 {
        if self.levels.is_some() {
            return 2.3; // room above `open` for the lines of several breakers
        }
        let values = self.lines.iter().flat_map(|line| &line.points).flatten().map(|(_, value)| *value);
        let most = values.fold(0.0, f64::max);
        let tick = tick(most.max(1.0));
        (most / tick).ceil().max(1.0) * tick
    }
}

/// Returns the distance between ticks: 1, 2 or 5 times a power of ten, so that there are at most six.
fn tick(most: f64) -> f64 {
    let mut unit = 1e-3;
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if most / (unit * factor) <= 5.0 {
                return unit * factor;
            }
        }
        unit *= 10.0;
    }
}

/// Where a panel is drawn.
struct Frame {
    top: f64,
    seconds: f64,
    most: f64,
}

impl Frame {
    fn x(&self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at / self.seconds).clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + PANEL * (1.0 - (value / self.most).clamp(0.0, 1.0))
    }

    fn draw(&self, panel: &Panel, fault: (f64, f64), svg: &mut String) {
        let bottom = self.top + PANEL;
        let _ = writeln!(svg, "<text class=\"panel\" x=\"{LEFT}\" y=\"{}\">{}</text>", self.top - 8.0, panel.title);
        let (begin, end) = (self.x(fault.0), self.x(fault.1));
        let _ = writeln!(
            svg,
            "<rect x=\"{begin:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{PANEL}\" fill=\"url(#h)\" opacity=\".5\"/>",
            self.top,
            end - begin
        );
        for edge in [begin, end] {
            let top = self.top;
            let _ =
                writeln!(svg, "<line class=\"edge\" x1=\"{edge:.1}\" y1=\"{top}\" x2=\"{edge:.1}\" y2=\"{bottom}\"/>");
        }
        self.draw_axes(panel, svg);
        for (index, line) in panel.lines.iter().enumerate().take(MAX_LINES) {
            self.draw_line(index, line, svg);
        }
        if panel.lines.iter().all(|line| line.points.iter().flatten().all(|(_, value)| *value == 0.0))
            && panel.levels.is_none()
        {
            let (x, y) = ((LEFT + RIGHT) / 2.0, self.top + PANEL / 2.0);
            let _ = writeln!(svg, "<text class=\"quiet\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">none</text>");
        }
    }

    fn draw_axes(&self, panel: &Panel, svg: &mut String) {
        let bottom = self.top + PANEL;
        let labels: Vec<(f64, String)> = match panel.levels {
            Some(levels) => (0..3).map(|level| (f64::from(level), levels[level as usize].to_owned())).collect(),
            None => {
                let tick = tick(self.most);
                let count = (self.most / tick).round() as u32;
                (0..=count).map(|it| (f64::from(it) * tick, number(f64::from(it) * tick))).collect()
            }
        };
        for (value, label) in labels {
            let y = self.y(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>\
                 <text class=\"quiet\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let step = tick(self.seconds);
        for index in 0..=(self.seconds / step).floor() as u32 {
            let at = f64::from(index) * step;
            let x = self.x(at);
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{}\"/>\
                 <text class=\"quiet\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 4.0,
                bottom + 17.0,
                number(at)
            );
        }
        let (middle, centre) = (self.top + PANEL / 2.0, (LEFT + RIGHT) / 2.0);
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {}V{bottom}H{RIGHT}\"/>\n\
             <text class=\"quiet\" x=\"{centre}\" y=\"{}\" text-anchor=\"middle\">time in the step (seconds)</text>\n\
             <text class=\"quiet\" transform=\"translate(14 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            self.top,
            bottom + 32.0,
            panel.unit
        );
    }

    fn draw_line(&self, index: usize, line: &Line, svg: &mut String) {
        let mut path = String::new();
        let mut pen_is_down = false;
        // Phases have three values, so that the lines of several breakers would cover each other.
        let shift = if line.stepped { index as f64 * APART } else { 0.0 };
        for point in &line.points {
            let Some((at, value)) = *point else {
                pen_is_down = false;
                continue;
            };
            let (x, y) = (self.x(at), self.y(value) - shift);
            let _ = match (pen_is_down, line.stepped) {
                (false, _) => write!(path, "M{x:.1} {y:.1}"),
                (true, false) => write!(path, "L{x:.1} {y:.1}"),
                (true, true) => write!(path, "H{x:.1}V{y:.1}"),
            };
            pen_is_down = true;
        }
        let dash = DASHES[index % DASHES.len()];
        if !path.is_empty() {
            let _ = writeln!(svg, "<path class=\"line c{index}\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>");
        }
        // Markers at even distances, moved from line to line so that they do not cover each other; and at points without
        // neighbours, where no line is drawn.
        let every = line.points.len().div_ceil(MARKERS).max(1);
        let is_gap = |at: Option<usize>| at.and_then(|at| line.points.get(at)).is_none_or(Option::is_none);
        for (number, (at, value)) in line.points.iter().enumerate().filter_map(|(it, point)| Some((it, (*point)?))) {
            let is_alone = is_gap(number.checked_sub(1)) && is_gap(number.checked_add(1));
            if is_alone || number % every == index * every / MAX_LINES {
                mark(index, self.x(at), self.y(value) - shift, svg);
            }
        }
        let (x, y) = (RIGHT + 14.0, self.top + 8.0 + index as f64 * 19.0);
        let _ = writeln!(
            svg,
            "<path class=\"line c{index}\" stroke-dasharray=\"{dash}\" d=\"M{x} {y}h34\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 42.0,
            y + 4.0,
            Xml(&line.name)
        );
        mark(index, x + 17.0, y, svg);
    }
}

/// Draws the marker of a line: circle, square, triangle, diamond, cross, plus.
fn mark(index: usize, x: f64, y: f64, svg: &mut String) {
    let class = format!("mark c{}", index % MAX_LINES);
    let _ = match index % MAX_LINES {
        0 => writeln!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"/>"),
        1 => writeln!(svg, "<path class=\"{class}\" d=\"M{:.1} {:.1}h6v6h-6z\"/>", x - 3.0, y - 3.0),
        2 => writeln!(svg, "<path class=\"{class}\" d=\"M{x:.1} {:.1}l3.8 6.6h-7.6z\"/>", y - 4.2),
        3 => writeln!(svg, "<path class=\"{class}\" d=\"M{x:.1} {:.1}l4 4l-4 4l-4 -4z\"/>", y - 4.0),
        4 => writeln!(svg, "<path class=\"{class}\" d=\"M{:.1} {:.1}l6 6m0 -6l-6 6\"/>", x - 3.0, y - 3.0),
        _ => writeln!(svg, "<path class=\"{class}\" d=\"M{:.1} {y:.1}h8m-4 -4v8\"/>", x - 4.0),
    };
}

/// Formats a number with at most three decimals.
fn number(value: f64) -> String {
    let rounded = (value * 1_000.0).round() / 1_000.0;
    format!("{rounded}")
}

/// Shortens a name from a file, so that it fits beside a panel.
fn short(name: &str) -> String {
    const MAX_CHARS: usize = 22;
    if name.chars().count() <= MAX_CHARS {
        return name.to_owned();
    }
    name.chars().take(MAX_CHARS - 1).chain(['…']).collect()
}

/// Text that is safe in XML: markup escaped, characters that XML cannot hold replaced.
struct Xml<'a>(&'a str);

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            '\u{FFFE}' | '\u{FFFF}' => f.write_char('\u{FFFD}'),
            letter if letter.is_control() => f.write_char('\u{FFFD}'),
            letter => f.write_char(letter),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (most, expected) in
            [(1.0, 0.2), (4.0, 1.0), (80.0, 20.0), (190.0, 50.0), (790.0, 200.0), (86_400.0, 20_000.0)]
        {
            assert!((tick(most) - expected).abs() < 1e-9, "{most}: {}", tick(most));
        }
    }

    #[test]
    fn names_from_a_file_are_safe_in_xml() {
        assert_eq!(Xml("<a & \"b'>\u{0}\u{FFFF}").to_string(), "&lt;a &amp; &quot;b&#39;&gt;\u{FFFD}\u{FFFD}");
        assert_eq!(short(&"x".repeat(30)).chars().count(), 22);
    }
}
