use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;

const RULES: &str = "Answer briefly and to the point. Cite the page that you used for the answer.\n";

fn system(first: &str) -> String {
    format!("{first}\n{}", RULES.repeat(40))
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": format!("The tool {name}. ").repeat(9)}})
}

fn request(system: &str, tools: &[&str], user: &str) -> Value {
    let tools: Vec<Value> = tools.iter().map(|name| tool(name)).collect();
    json!({"tools": tools, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": user}]})
}

fn prompt<'a>(api: Api, body: &'a Body<'a>, session: Option<u64>) -> WatchedPrompt<'a> {
    WatchedPrompt { model: "m", api, body, session, salt: 0, attribution: Attribution::Dropped }
}

struct Watched(PrefixWatch);

impl Watched {
    fn new() -> Watched {
        Watched(PrefixWatch::new(7))
    }

    fn see(&mut self, request: &Value, session: Option<u64>, at_s: u64) {
        let text = request.to_string();
        let body = Body::read(text.as_bytes()).unwrap();
        let prompt = prompt(Api::Chat, &body, session);
        self.0.see(prompt, xxh3_64_with_seed, Micros::from_secs(at_s));
    }

    /// Sees ten requests, and returns the only place at which they part.
    fn only_break(mut self, request: impl Fn(usize) -> Value) -> (Cause, String, Option<u32>) {
        (0..10).for_each(|n| self.see(&request(n), None, n as u64));
        let report = self.0.report(Micros::from_secs(10));
        let model = &report.models[0];
        assert_eq!((model.compared, model.broken), (9, 9), "{report:?}");
        assert_eq!(model.breaks.len(), 1, "{report:?}");
        let place = &model.breaks[0];
        (place.cause, place.field.clone(), place.byte)
    }
}

#[test]
fn a_date_is_found_with_its_place() {
    let at = |n: usize| format!("You are the help of the shop.\nNow: 2026-11-17T08:{n:02}:00Z");
    let found = Watched::new().only_break(|n| request(&system(&at(n)), &[], "What is new?"));
    assert_eq!(found, (Cause::Timestamp, "messages[0].content".to_owned(), Some(35)));
}

#[test]
fn a_random_id_at_the_beginning_is_found() {
    let id = |n: usize| format!("Request {:016x}", xxh3_64_with_seed(b"id", n as u64));
    let found = Watched::new().only_break(|n| request(&system(&id(n)), &["a"], "What is new?"));
    assert_eq!(found, (Cause::RandomId, "messages[0].content".to_owned(), Some(8)));
}

#[test]
fn values_that_stay_the_same_are_not_the_cause() {
    let line = |case: usize, n: usize| match case {
        0 => format!("Policy of 2026-01-01. Request id {:016x}f7.", xxh3_64_with_seed(b"id", n as u64)),
        1 => format!("Build 9f86d081884c. Turn {n}."),
        2 => format!("Build 9f86d081884c, now 08:{:02}:00.", n + 10),
        _ => format!("Turn {n}, now 08:{:02}:00.", n + 10),
    };
    let expected =
        [(Cause::RandomId, 33), (Cause::Number, 25), (Cause::Timestamp, 24), (Cause::Timestamp, 5)];
    for (case, (cause, byte)) in expected.into_iter().enumerate() {
        let found = Watched::new().only_break(|n| request(&system(&line(case, n)), &[], "What is new?"));
        assert_eq!(found, (cause, "messages[0].content".to_owned(), Some(byte)), "{}", line(case, 0));
    }
}

#[test]
fn an_attribution_line_breaks_nothing_where_engines_drop_it() {
    for (attribution, broken) in [(Attribution::Dropped, 0), (Attribution::Kept, 9)] {
        let mut watch = PrefixWatch::new(7);
        for n in 0..10_u64 {
            let line =
                format!("x-anthropic-billing-header: cc_version=2.1.197.{:03x}; cc_entrypoint=cli;", n * 77);
            let system = json!([{"type": "text", "text": line}, {"type": "text", "text": system("Rules")}]);
            let text = json!({"system": system, "messages": [{"role": "user", "content": "Hi"}]}).to_string();
            let body = Body::read(text.as_bytes()).unwrap();
            let prompt = WatchedPrompt { attribution, ..prompt(Api::Messages, &body, None) };
            watch.see(prompt, xxh3_64_with_seed, Micros::from_secs(n));
        }
        let report = watch.report(Micros::from_secs(10));
        let model = &report.models[0];
        assert_eq!((model.compared, model.broken), (9, broken), "{attribution:?} {report:?}");
        assert!(model.breaks.iter().all(|place| place.cause == Cause::Attribution), "{report:?}");
    }
}

#[test]
fn tools_in_another_order_and_more_tools_are_told_apart() {
    let names = ["alpha", "beta", "gamma", "delta"];
    let rotated = |n: usize| {
        let mut names = names;
        names.rotate_left(n % 4);
        request(&system("Rules"), &names, "What is new?")
    };
    let tools = || "tools".to_owned();
    assert_eq!(Watched::new().only_break(rotated), (Cause::ToolsReordered, tools(), None));
    let all: Vec<String> = (0..12).map(|n| format!("tool{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let growing = |n: usize| request(&system("Rules"), &all[..=n], "What is new?");
    assert_eq!(Watched::new().only_break(growing), (Cause::ToolsAdded, tools(), None));
    let shrinking = |n: usize| request(&system("Rules"), &all[..10 - n], "What is new?");
    assert_eq!(Watched::new().only_break(shrinking), (Cause::ToolsRemoved, tools(), None));
}

#[test]
fn tools_whose_names_differ_only_in_numbers_are_no_counters_and_no_ids() {
    let names: [fn(usize) -> String; 3] = [
        |n| format!("tool_{n}"),
        |n| format!("mcp__db{n}__query"),
        |n| format!("fetch_{:016x}", xxh3_64_with_seed(b"tool", n as u64)),
    ];
    for name in names {
        let all: Vec<String> = (0..12).map(name).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let of = |tools: Vec<&str>| request(&system("Rules"), &tools, "What is new?");
        let rotated = |n: usize| of((0..8).map(|at| all[(at + n) % 8]).collect());
        // Each request has one tool more, or one less, before those of the last one.
        let growing = |n: usize| of(all[9 - n..].to_vec());
        let shrinking = |n: usize| of(all[n..].to_vec());
        let sliding = |n: usize| of((0..6).map(|at| all[(at + n) % 12]).collect());
        let tools = |cause| (cause, "tools".to_owned(), None);
        assert_eq!(Watched::new().only_break(rotated), tools(Cause::ToolsReordered), "{all:?}");
        assert_eq!(Watched::new().only_break(growing), tools(Cause::ToolsAdded), "{all:?}");
        assert_eq!(Watched::new().only_break(shrinking), tools(Cause::ToolsRemoved), "{all:?}");
        assert_eq!(Watched::new().only_break(sliding), tools(Cause::ToolsChanged), "{all:?}");
    }
    // A value that changes within a tool is still one.
    let dated = |n: usize| {
        let mut request = request(&system("Rules"), &["tool_1", "tool_2"], "What is new?");
        let text = format!("It is 2026-11-17T08:{n:02}:00Z. {}", "Looks things up. ".repeat(20));
        request["tools"][0]["function"]["description"] = json!(text);
        request
    };
    assert_eq!(Watched::new().only_break(dated).0, Cause::Timestamp);
}

#[test]
fn growing_conversations_and_other_users_are_no_break() {
    let mut watched = Watched::new();
    for user in ["apple", "pear", "plum", "grape", "fig"] {
        let mut messages = vec![json!({"role": "system", "content": system("Rules")})];
        for turn in 0..6 {
            messages
                .push(json!({"role": "user", "content": format!("{user} asks {turn}: {}", user.repeat(90))}));
            watched.see(&json!({"messages": messages}), None, 1);
            messages
                .push(json!({"role": "assistant", "content": format!("{user}: {}", format!("{user}. ").repeat(90))}));
        }
    }
    let report = watched.0.report(Micros::from_secs(1));
    assert_eq!((report.models[0].compared, report.models[0].broken), (29, 0), "{report:?}");
}

#[test]
fn a_client_that_drops_old_turns_is_found_by_its_session() {
    let mut watched = Watched::new();
    let turn = |n: usize| json!({"role": "user", "content": format!("Turn {n}. {}", "word ".repeat(n + 99))});
    for n in 0..10 {
        let messages: Vec<Value> = (n..n + 6).map(turn).collect();
        let messages = [vec![json!({"role": "system", "content": system("Rules")})], messages].concat();
        watched.see(&json!({"messages": messages}), Some(5), 1);
    }
    let report = watched.0.report(Micros::from_secs(1));
    let place = &report.models[0].breaks[0];
    assert_eq!((place.cause, place.requests, place.field.as_str()), (Cause::HistoryTrimmed, 9, "messages"));
}

#[test]
fn tenants_with_other_salts_are_not_compared() {
    let mut watch = PrefixWatch::new(7);
    let text = request(&system("Rules"), &[], "Hi").to_string();
    let body = Body::read(text.as_bytes()).unwrap();
    for salt in 0..4 {
        let prompt = WatchedPrompt { salt, ..prompt(Api::Chat, &body, None) };
        watch.see(prompt, xxh3_64_with_seed, Micros::ZERO);
    }
    assert_eq!((watch.compared(), watch.report(Micros::ZERO).outlined), (0, 4));
}

#[test]
fn memory_and_models_are_bounded() {
    let mut watch = PrefixWatch::new(7);
    let long = "A line of text that is somewhat long.\n".repeat(2_000);
    for n in 0..400_u64 {
        let text = json!({"prompt": format!("{} {long}", "x".repeat(n as usize))}).to_string();
        let body = Body::read(text.as_bytes()).unwrap();
        let model = format!("model-{}", n % 100);
        let prompt = WatchedPrompt { model: &model, ..prompt(Api::Completions, &body, Some(n)) };
        watch.see(prompt, xxh3_64_with_seed, Micros::from_secs(n));
    }
    assert!(watch.memory_bytes <= OUTLINES_BYTES_MAX);
    let kept: usize = watch.outlines.values().map(|kept| kept.outline.memory_bytes()).sum();
    assert_eq!((kept, watch.uses.len()), (watch.memory_bytes, watch.outlines.len()));
    assert!(watch.models.len() <= MODELS_MAX + 1);
}

#[test]
fn losses_are_projected_to_a_day_and_old_ones_fade() {
    let mut watched = Watched::new();
    let at = |n: u64| request(&system(&format!("Now: 08:{:02}:{:02}", n / 60 % 60, n % 60)), &[], "Hi");
    (0..101).for_each(|n| watched.see(&at(n), None, n * 36));
    let model = &watched.0.report(Micros::from_secs(3_600)).models[0];
    assert_eq!((model.compared, model.broken), (100, 100));
    assert!(model.share(model.broken) > 0.999);
    let lost = system("").len() as u64 / 4;
    assert!(model.lost_tokens.abs_diff(100 * lost) < 2_000, "{} of {lost}", model.lost_tokens);
    assert!(model.per_day(model.broken).unwrap().abs_diff(2_400) < 60, "{model:?}");
    let early = &watched.0.report(Micros::from_secs(599)).models[0];
    assert_eq!(early.per_day(early.broken), None, "minutes say little about a day");
    watched.see(&at(7), None, 200_000);
    assert_eq!(watched.0.report(Micros::from_secs(200_000)).models[0].broken, 51);
}
