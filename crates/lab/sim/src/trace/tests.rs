//! Small files of every format.

use super::*;
use crate::tokens;

/// A temporary file, deleted on drop.
struct Scrap(PathBuf);

impl Scrap {
    fn new(name: &str, bytes: &[u8]) -> Scrap {
        let path = std::env::temp_dir().join(format!("warmroute-trace-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Scrap(path)
    }

    /// What can be read, however much cannot.
    fn read(&self) -> Trace {
        read_readable_lines(&self.0, &TraceOptions::default()).unwrap().0
    }
}

impl Drop for Scrap {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn trace(name: &str, text: &str) -> Trace {
    Scrap::new(name, text.as_bytes()).read()
}

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}
{"timestamp": 27, "input_length": 1024, "output_length": 0, "hash_ids": [0, 2]}
"#;

#[test]
fn mooncake_hashes_become_pieces() {
    let trace = trace("mooncake.jsonl", MOONCAKE);
    assert_eq!(trace.format, TraceFormat::Mooncake);
    let [first, second] = &trace.sessions[..] else { panic!("two requests") };
    assert_eq!((first.starts, second.starts), (Micros::ZERO, Micros::from_millis(27)));
    let (first, second) = (&first.turns[0], &second.turns[0]);
    assert_eq!((tokens(&first.prompt), tokens(&second.prompt)), (600, 1_024));
    assert_eq!(first.prompt[0], second.prompt[0]);
    assert_ne!(first.prompt[1].content, second.prompt[1].content);
    assert_eq!(tokens(&second.answer), 1, "an engine gives at least one token");
    assert_eq!(trace.bad_lines_total, 0);
}

#[test]
fn bad_lines_are_named_and_counted_and_the_rest_is_read() {
    let text = format!(
        "{MOONCAKE}{{\"timestamp\": 3\n\n{{\"timestamp\": 9, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [7,8,9]}}\n"
    );
    let scrap = Scrap::new("bad.jsonl", text.as_bytes());
    let trace = scrap.read();
    assert_eq!((trace.sessions.len(), trace.bad_lines_total), (2, 2));
    let said: Vec<String> = trace.bad_lines.iter().map(ToString::to_string).collect();
    assert!(said[0].contains("bad.jsonl:3: "), "{said:?}");
    assert!(said[1].contains("bad.jsonl:5: 3 hashes for 600 tokens"), "{said:?}");
}

fn mooncake_row(at: u64, hashes: u64) -> String {
    let ids: Vec<String> = (0..hashes).map(|id| id.to_string()).collect();
    format!(
        r#"{{"timestamp": {at}, "input_length": 20289, "output_length": 5, "hash_ids": [{}]}}"#,
        ids.join(",")
    ) + "\n"
}

#[test]
fn traces_that_list_whole_blocks_only_are_read() {
    let whole: String = (0..3).map(|at| mooncake_row(at, 39)).collect();
    let trace = trace("whole-blocks.jsonl", &whole);
    assert_eq!((trace.sessions.len(), trace.bad_lines_total), (3, 0));
    assert!(trace.notes.iter().any(|note| note.contains("3 requests list whole blocks only")));
    let prompt = |at: usize| &trace.sessions[at].turns[0].prompt;
    assert_eq!((tokens(prompt(0)), prompt(0).len()), (20_289, 40));
    assert_eq!(prompt(0)[..39], prompt(1)[..39]);
    assert_ne!(prompt(0)[39], prompt(1)[39], "the tail has no name, so it is shared with no prompt");
    let named = self::trace("all-blocks.jsonl", &mooncake_row(0, 40));
    assert_eq!(tokens(&named.sessions[0].turns[0].prompt), 20_289);
}

#[test]
fn a_trace_with_more_than_one_percent_unreadable_lines_is_refused() {
    let file = |bad: u64| {
        let rows: String = (0..200).map(|at| mooncake_row(at, if at < bad { 7 } else { 40 })).collect();
        let scrap = Scrap::new(&format!("share-{bad}.jsonl"), rows.as_bytes());
        read_trace(&scrap.0, &TraceOptions::default())
    };
    assert_eq!(file(2).unwrap().sessions.len(), 198, "1 % is left out and counted");
    let error = file(3).unwrap_err().to_string();
    assert!(error.contains("3 of 200 lines cannot be read, more than 1 %"), "{error}");
    assert!(error.contains("share-3.jsonl:1: 7 hashes for 20289 tokens: expected 39 or 40"), "{error}");
}

#[test]
fn files_that_are_no_trace_are_refused() {
    let read = |name: &str, text: &str| {
        let scrap = Scrap::new(name, text.as_bytes());
        read_trace(&scrap.0, &TraceOptions::default()).unwrap_err().to_string()
    };
    assert!(read("poem.txt", "roses are red").contains("no known format"));
    assert!(read("empty.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,y\n").contains("empty.csv:2"));
    assert!(read_trace(Path::new("/no/such/file"), &TraceOptions::default()).is_err());
}

#[test]
fn bailian_chats_keep_one_thread_key() {
    let row = |chat: i64, parent: i64, at: f64, ids: &str| {
        format!(
            r#"{{"chat_id":{chat},"parent_chat_id":{parent},"timestamp":{at},"input_length":32,"output_length":9,"type":"text","turn":1,"hash_ids":[{ids}]}}"#
        )
    };
    let text = [row(5, -1, 0.5, "1,2"), row(6, -1, 1.0, "1,3"), row(9, 5, 2.25, "1,2")].join("\n");
    let trace = trace("bailian.jsonl", &text);
    assert_eq!(trace.format, TraceFormat::Bailian);
    let key = |at: usize| trace.sessions[at].turns[0].thread.key.unwrap();
    assert!(key(0) == key(2) && key(0) != key(1));
    assert_eq!(trace.sessions[2].starts, Micros::from_millis(1_750), "since the first");
}

#[test]
fn hostile_stamps_and_lengths_are_bad_lines_in_every_format() {
    let mooncake = |at: &str, input: u64, output: u64| {
        format!(r#"{{"timestamp":{at},"input_length":{input},"output_length":{output},"hash_ids":[1]}}"#)
            + "\n"
    };
    let azure = |rows: &str| {
        format!(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-30 23:59:59,9,9\n2023-12-01 00:00:00,9,9\n{rows}\n"
        )
    };
    let brix = |at: &str, output: u64| {
        format!(r#"{{"timestamp":{at},"requests":[{{"prompt":"I am","Output Length":{output}}}]}}"#) + "\n"
    };
    let unix = [mooncake("1700000000000", 9, 9), mooncake("1700000001000", 9, 9)].concat();
    let ticks = [brix("1700000000000", 9), brix("1700000001000", 9)].concat();
    for (name, text) in [
        ("answer", format!("{unix}{}", mooncake("1700000000000", 9, 4_294_967_295))),
        ("far", format!("{unix}{}", mooncake("1e300", 9, 9))),
        ("zero", format!("{unix}{}", mooncake("0", 9, 9))),
        ("azure-tokens", azure("2023-12-01 00:00:00,4294967295,4294967295")),
        ("azure-year", azure("9999-12-01 00:00:00,9,9")),
        ("brix-answer", format!("{ticks}{}", brix("1700000000000", 4_294_967_295))),
        ("brix-far", format!("{ticks}{}", brix("1e300", 9))),
    ] {
        let trace = trace(name, &text);
        let starts: Vec<Micros> = trace.sessions.iter().map(|session| session.starts).collect();
        assert_eq!(starts, [Micros::ZERO, Micros::from_secs(1)], "{name}");
        assert_eq!((trace.bad_lines_total, trace.bad_lines.len()), (1, 1), "{name}");
        let line = text.trim_end().lines().count();
        assert_eq!(trace.bad_lines[0].line, line, "{name}");
    }
    let lm =
        trace("lm-answer", r#"[{"input":"a","output_length":5},{"input":"b","output_length":4294967295}]"#);
    assert_eq!((lm.sessions.len(), lm.bad_lines_total), (1, 1));
}

#[test]
fn azure_rows_share_no_content() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:04.0319600,48,8\n";
    let trace = trace("azure.csv", text);
    assert_eq!(trace.format, TraceFormat::Azure);
    assert_eq!(trace.sessions[1].starts, Micros(52_000));
    assert_ne!(trace.sessions[0].turns[0].prompt, trace.sessions[1].turns[0].prompt);
}

#[test]
fn text_traces_are_read_by_the_production_prompt_code() {
    let chat = r#"[{"id":"a","conversations":[{"from":"human","value":"How do I bake bread?"},{"from":"gpt","value":"With flour."},{"from":"human","value":"And then?"},{"from":"gpt","value":"With heat."}]},{"id":"b","conversations":[{"from":"human","value":"Hello"}]}]"#;
    let shared = trace("share.json", chat);
    assert_eq!((shared.format, shared.sessions.len()), (TraceFormat::ShareGpt, 2));
    let turns = |trace: &Trace| trace.sessions.iter().map(|session| session.turns.len()).max();
    assert_eq!(turns(&shared), Some(2));
    assert!(shared.notes.iter().any(|note| note.contains("1 conversations have no answer")));
    let lm =
        trace("lm.json", r#"[{"input":"a b c","output_length":5},{"input":"a b c d","output_length":6}]"#);
    assert_eq!((lm.format, lm.sessions.len(), turns(&lm)), (TraceFormat::LmBenchmark, 1, Some(2)));
    let brix = trace(
        "brix.jsonl",
        r#"{"timestamp":6011,"requests":[{"Prompt Length":178,"Output Length":8,"prompt":"I am"}]}"#,
    );
    assert_eq!((brix.format, brix.sessions[0].starts), (TraceFormat::AiBrix, Micros::ZERO));
}

#[test]
fn accumulated_prompts_are_turns_of_their_conversations() {
    let (one, other) = ("How do I bake bread? ".repeat(20), "What is a lens? ".repeat(20));
    let inputs =
        [one.clone(), other.clone(), format!("{one}With flour. And then?"), format!("{other}A glass.")];
    let rows = inputs.map(|input| serde_json::json!({"input": input, "output_length": 7}));
    let lm = trace("lm-turns.json", &serde_json::json!(rows).to_string());
    assert_eq!(lm.sessions.iter().map(|session| session.turns.len()).collect::<Vec<_>>(), [2, 2]);
    for session in &lm.sessions {
        let [first, second] = &session.turns[..] else { panic!("two turns") };
        assert_eq!(first.thread, second.thread);
        assert!(first.thread.key.is_some());
        let whole = first.prompt.len() - 1;
        assert_eq!(second.prompt[..whole], first.prompt[..whole], "all but the last, unfinished piece");
    }
    assert_ne!(lm.sessions[0].turns[0].thread.key, lm.sessions[1].turns[0].thread.key);
}

#[test]
fn a_long_document_is_asked_all_its_questions() {
    let document = "A long story. ".repeat(400);
    let row = |pairs: &str, output: &str| {
        serde_json::json!({"input": document, "title": "t", "qa_pairs": pairs, "output": output}).to_string()
            + "\n"
    };
    let text = [
        row("[{'Q': 'Who?', 'A': 'He', 'S': 'x'}, {'Q': 'When?', 'A': 'Then'}]", "none"),
        row("none", "It ends well."),
        row("none", "none"),
    ];
    let loogle = trace("loogle.jsonl", &text.concat());
    assert_eq!((loogle.format, loogle.sessions.len(), loogle.bad_lines_total), (TraceFormat::Loogle, 2, 1));
    let asked = loogle.sessions.iter().find(|session| session.turns.len() == 2).unwrap();
    let [first, second] = &asked.turns[..] else { panic!("two questions") };
    assert_eq!(first.prompt[..80], second.prompt[..80], "the document");
    assert!((tokens(&first.prompt) as i64 - 1_400).abs() < 20, "{}", tokens(&first.prompt));
}

#[test]
fn passages_are_placed_as_the_options_say() {
    let task = r#"{"task_id":"x","contexts":[{"document_id":"d","text":"PASSAGE"}],"input":[{"speaker":"user","text":"first question"},{"speaker":"agent","text":"first answer"},{"speaker":"user","text":"second"}],"targets":[{"speaker":"agent","text":"second answer"}]}"#;
    let scrap = Scrap::new("mtrag.jsonl", task.as_bytes());
    let prompts = |passages| {
        let options = TraceOptions { passages, ..TraceOptions::default() };
        let trace = read_trace(&scrap.0, &options).unwrap();
        assert_eq!(trace.format, TraceFormat::Mtrag);
        trace.sessions[0].turns.iter().map(|turn| turn.prompt.clone()).collect::<Vec<_>>()
    };
    let (before, after, left) = (
        prompts(PassagePlacement::Before),
        prompts(PassagePlacement::After),
        prompts(PassagePlacement::Omitted),
    );
    assert_eq!((before.len(), after.len(), left.len()), (2, 2, 2));
    assert_eq!((&after[0], &before[0]), (&left[0], &left[0]), "earlier questions had other passages");
    assert_ne!(before[1][0], left[1][0], "passages first");
    assert!(after[1].starts_with(&left[0]), "history first");
    assert!(tokens(&after[1]) > tokens(&left[1]));
}

#[test]
fn compressed_files_are_read_and_broken_ones_refused() {
    let packed =
        ruzstd::encoding::compress_to_vec(MOONCAKE.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    let trace = Scrap::new("mooncake.jsonl.zst", &packed).read();
    assert_eq!(trace.sessions, self::trace("plain.jsonl", MOONCAKE).sessions);
    let cut = Scrap::new("cut.jsonl.zst", &packed[..packed.len() / 2]);
    assert!(matches!(read_trace(&cut.0, &TraceOptions::default()), Err(TraceError::Unreadable { .. })));
}

#[test]
fn copies_share_no_content_and_a_higher_rate_starts_sooner() {
    let scrap = Scrap::new("copies.jsonl", MOONCAKE.as_bytes());
    let options = TraceOptions { copies: 3, rate: 2.0, ..TraceOptions::default() };
    let trace = read_trace(&scrap.0, &options).unwrap();
    assert_eq!(trace.sessions.len(), 6);
    let mut heads: Vec<u64> =
        trace.sessions.iter().map(|session| session.turns[0].prompt[0].content).collect();
    heads.sort_unstable();
    heads.dedup();
    assert_eq!(heads.len(), 3);
    assert!(trace.sessions.iter().any(|session| session.starts == Micros(13_500)));
    let few = TraceOptions { requests_max: Some(1), ..options };
    assert_eq!(read_trace(&scrap.0, &few).unwrap().sessions.len(), 1);
}
