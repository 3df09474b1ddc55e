//! Why prompts part, as far as their outlines and the shape of a value tell.

use warmroute_prompt::{Field, Outline, OutlinePart, Role, has_attribution, value_digest};

use crate::Parting;
use crate::value_kind::{ValueKind, value_in};

/// Likely cause of a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A date or a time.
    Timestamp,
    /// A request id, a session id or a random number.
    RandomId,
    /// A count or another number.
    Number,
    /// Claude Code's attribution line.
    Attribution,
    /// The same tools in another order.
    ToolsReordered,
    /// More tools than before.
    ToolsAdded,
    /// Fewer tools than before.
    ToolsRemoved,
    /// Other definitions of tools.
    ToolsChanged,
    /// A setting of the chat template.
    Setting,
    /// Older turns are missing.
    HistoryTrimmed,
    /// An older turn differs.
    HistoryRewritten,
    /// Other text in the system prompt or in the first turn.
    Text,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 12] = [
        Cause::Timestamp,
        Cause::RandomId,
        Cause::Number,
        Cause::Attribution,
        Cause::ToolsReordered,
        Cause::ToolsAdded,
        Cause::ToolsRemoved,
        Cause::ToolsChanged,
        Cause::Setting,
        Cause::HistoryTrimmed,
        Cause::HistoryRewritten,
        Cause::Text,
    ];

    /// Name in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Timestamp => "timestamp",
            Cause::RandomId => "random_id",
            Cause::Number => "number",
            Cause::Attribution => "attribution",
            Cause::ToolsReordered => "tools_reordered",
            Cause::ToolsAdded => "tools_added",
            Cause::ToolsRemoved => "tools_removed",
            Cause::ToolsChanged => "tools_changed",
            Cause::Setting => "setting",
            Cause::HistoryTrimmed => "history_trimmed",
            Cause::HistoryRewritten => "history_rewritten",
            Cause::Text => "text",
        }
    }

    /// What clients do that has this effect, for messages.
    pub fn typical_of(self) -> &'static str {
        match self {
            Cause::Timestamp => "a timestamp",
            Cause::RandomId => "a request id or another random id",
            Cause::Number => "a counter",
            Cause::Attribution => "Claude Code's attribution line",
            Cause::ToolsReordered => "tools listed in no fixed order",
            Cause::ToolsAdded => "tools loaded while a conversation runs",
            Cause::ToolsRemoved => "tools chosen anew for each request",
            Cause::ToolsChanged => "tool definitions made for each request",
            Cause::Setting => "a template setting that changes between requests",
            Cause::HistoryTrimmed => "a client that drops old turns to save tokens",
            Cause::HistoryRewritten => "a client that edits or summarizes old turns",
            Cause::Text => "varying text before fixed text",
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Cause::Timestamp => "Move the date to the end of the last user message, or cut it to the day.",
            Cause::RandomId => {
                "Send the id in a header or in metadata, or put it at the end of the last message."
            }
            Cause::Number => "Put numbers that change at the end of the last message.",
            Cause::Attribution => {
                "Set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for Claude Code: these engines are not known to drop the line, as vLLM does from 0.24 on."
            }
            Cause::ToolsReordered => "Sort the tools by name before every request.",
            Cause::ToolsAdded => {
                "List all tools from the first request on, or load them through one search tool."
            }
            Cause::ToolsRemoved => "Keep the list of tools and restrict their use with tool_choice.",
            Cause::ToolsChanged => {
                "Keep descriptions and schemas constant; write object keys in a fixed order."
            }
            Cause::Setting => "Use one value of the setting for a whole conversation.",
            Cause::HistoryTrimmed => "Drop old turns seldom and many at once, not one with every request.",
            Cause::HistoryRewritten => "Append to a conversation and leave what was sent unchanged.",
            Cause::Text => "Put the text that all requests share first and the text that varies last.",
        }
    }
}

/// A cause, and the position of the value in its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CauseAt {
    pub cause: Cause,
    pub byte: u32,
}

/// Judges a parting. `text` is the text of the later prompt's part, `digest` that of the outlines.
pub(crate) fn judge(
    earlier: &Outline,
    later: &Outline,
    parting: &Parting,
    text: &[u8],
    digest: impl Fn(&[u8]) -> u64,
) -> CauseAt {
    let at = |cause| CauseAt { cause, byte: parting.byte };
    let part = &later.parts()[parting.part];
    if has_attribution(text) {
        return at(Cause::Attribution);
    }
    if parting.field == Field::Turns && is_found_later(earlier, later, parting) {
        return at(Cause::HistoryTrimmed);
    }
    if parting.is_value
        && !(parting.field == Field::Tools && is_other_tool(earlier, later, parting))
        && let Some(found) = changed_value(earlier, later, parting, text, digest)
    {
        return found;
    }
    match parting.field {
        Field::Setting => at(Cause::Setting),
        Field::Tools => at(tools_cause(earlier, later)),
        // Prompts with another opening are other conversations.
        Field::Turns
            if part.path.role != Role::System && earlier.likeness.opening == later.likeness.opening =>
        {
            at(Cause::HistoryRewritten)
        }
        Field::System | Field::Turns => at(Cause::Text),
    }
}

/// The value that differs in the first cell that differs.
fn changed_value(
    earlier: &Outline,
    later: &Outline,
    parting: &Parting,
    text: &[u8],
    digest: impl Fn(&[u8]) -> u64,
) -> Option<CauseAt> {
    let cell = later.cells_of(&later.parts()[parting.part]).get(parting.cell)?;
    let start = parting.byte as usize;
    let text = text.get(start..start + usize::from(cell.bytes))?;
    let before = earlier.values_of(&earlier.parts()[parting.part], parting.cell);
    let is_same = |number: usize, value: &[u8]| before.get(number) == Some(&value_digest(value, &digest));
    // A value that differs can have the digest of the earlier one by chance.
    let (kind, within) = value_in(text, is_same).or_else(|| value_in(text, |_, _| false))?;
    let cause = match kind {
        ValueKind::Time => Cause::Timestamp,
        ValueKind::Id => Cause::RandomId,
        ValueKind::Number => Cause::Number,
    };
    Some(CauseAt { cause, byte: parting.byte + within as u32 })
}

fn tools_cause(earlier: &Outline, later: &Outline) -> Cause {
    let (before, after) = (tool_digests(earlier), tool_digests(later));
    let is_within = |some: &[u64], all: &[u64]| some.iter().all(|digest| all.binary_search(digest).is_ok());
    match (is_within(&before, &after), is_within(&after, &before)) {
        (true, true) if before.len() == after.len() => Cause::ToolsReordered,
        (true, _) if before.len() < after.len() => Cause::ToolsAdded,
        (_, true) => Cause::ToolsRemoved,
        _ => Cause::ToolsChanged,
    }
}

/// Whether the prompts part because another tool stands there. Names of tools may look like values that changed: `tool_1`
/// and `tool_2`.
fn is_other_tool(earlier: &Outline, later: &Outline, parting: &Parting) -> bool {
    let has = |outline: &Outline, part: Option<&OutlinePart>| {
        part.is_some_and(|part| tool_digests(outline).binary_search(&part.digest).is_ok())
    };
    tools_cause(earlier, later) != Cause::ToolsChanged
        || has(earlier, later.parts().get(parting.part))
        || has(later, earlier.parts().get(parting.part))
}

/// Digests of the tools, sorted.
fn tool_digests(outline: &Outline) -> Vec<u64> {
    let tools = outline.parts().iter().filter(|part| part.path.field == Field::Tools);
    let mut digests: Vec<u64> = tools.map(|part| part.digest).collect();
    digests.sort_unstable();
    digests
}

/// Whether the later prompt's part stands further back in the earlier one.
fn is_found_later(earlier: &Outline, later: &Outline, parting: &Parting) -> bool {
    let digest = later.parts()[parting.part].digest;
    earlier.parts()[parting.part..]
        .iter()
        .any(|part| part.digest == digest && part.path.field == Field::Turns)
}
