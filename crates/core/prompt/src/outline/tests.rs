use proptest::prelude::*;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn outline(api: Api, body: &Value) -> Outline {
    let text = body.to_string();
    Outline::of(&Body::read(text.as_bytes()).unwrap(), api, Attribution::Dropped, xxh3_64)
}

fn paths(outline: &Outline) -> Vec<String> {
    outline.parts().iter().map(|part| part.path.to_string()).collect()
}

#[test]
fn parts_are_named_as_the_client_wrote_them() {
    let messages = json!({
        "tools": [{"name": "a"}, {"name": "b"}],
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]},
        ],
    });
    let expected =
        ["tools[0]", "tools[1]", "system[0]", "system[1]", "messages[0].content", "messages[1].content[0]"];
    assert_eq!(paths(&outline(Api::Messages, &messages)), expected);
    let responses = json!({
        "instructions": "Be brief.", "chat_template_kwargs": {"a": 1},
        "input": [{"type": "function_call_output", "output": "5"}, {"role": "user", "content": "Hi", "name": "Ann"}],
    });
    let expected = ["chat_template_kwargs", "instructions", "input[0]", "input[1].content", "input[1]"];
    assert_eq!(paths(&outline(Api::Responses, &responses)), expected);
    assert_eq!(paths(&outline(Api::Completions, &json!({"prompt": "Once"}))), ["prompt"]);
}

#[test]
fn prompts_that_differ_in_values_only_are_alike() {
    let chat = |system: &str| {
        outline(
            Api::Chat,
            &json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]}),
        )
    };
    let monday = chat("Today is Monday, 2026-11-16. You are a careful assistant.");
    let tuesday = chat("Today is Tuesday, 2026-11-17T08:12:13.9Z. You are a careful assistant.");
    assert_eq!(monday.likeness, tuesday.likeness);
    assert_ne!(monday.parts()[0].digest, tuesday.parts()[0].digest);
    let (before, after) = (monday.cells_of(&monday.parts()[0]), tuesday.cells_of(&tuesday.parts()[0]));
    assert_ne!(before[0].digest, after[0].digest);
    assert_eq!(before[0].frame, after[0].frame);
    assert_ne!(monday.likeness.front, chat("You are a pirate.").likeness.front);
}

#[test]
fn an_outline_is_bounded_and_has_no_text() {
    let turn = json!({"role": "user", "content": "A line of a long conversation.\n".repeat(200)});
    let long = outline(Api::Chat, &json!({"messages": vec![turn; 1_000]}));
    assert!(long.memory_bytes() < 64 << 10, "{}", long.memory_bytes());
    assert!(long.text_bytes() > 500_000, "{}", long.text_bytes());
    let image = json!({"type": "image_url", "image_url": {"url": "A".repeat(1 << 20)}});
    let image = outline(Api::Chat, &json!({"messages": [{"role": "user", "content": [image]}]}));
    assert!(image.text_bytes() < 20);
}

#[test]
fn the_text_of_a_part_is_found_again() {
    let body =
        json!({"system": "Be brief.", "messages": [{"role": "user", "content": "Hi\nyou"}]}).to_string();
    let body = Body::read(body.as_bytes()).unwrap();
    let text_of = |part| Outline::text_of(&body, Api::Messages, Attribution::Dropped, part);
    assert_eq!(text_of(1).unwrap(), b"Hi\nyou");
    assert_eq!(text_of(2), None);
}

#[test]
fn an_attribution_line_is_a_part_only_where_it_is_kept() {
    let body = json!({
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "Hi"}],
    });
    let text = body.to_string();
    let body = Body::read(text.as_bytes()).unwrap();
    let of = |attribution| Outline::of(&body, Api::Messages, attribution, xxh3_64);
    assert_eq!(paths(&of(Attribution::Dropped)), ["system[1]", "messages[0].content"]);
    assert_eq!(paths(&of(Attribution::Kept)), ["system[0]", "system[1]", "messages[0].content"]);
    assert_eq!(Outline::text_of(&body, Api::Messages, Attribution::Dropped, 0).unwrap(), b"Be brief.");
}

#[test]
fn the_values_of_each_cell_are_known_by_their_digests() {
    let text = format!("Now 08:12, turn 7.\n{}Page 9.", "words without any of them.\n".repeat(4));
    let outline = outline(Api::Completions, &json!({"prompt": text}));
    let (part, last) = (&outline.parts()[0], outline.cells_of(&outline.parts()[0]).len() - 1);
    let digests = |values: &[&str]| -> Vec<u16> {
        values.iter().map(|value| value_digest(value.as_bytes(), xxh3_64)).collect()
    };
    assert_eq!(outline.values_of(part, 0), digests(&["08:12", "7"]));
    assert_eq!(outline.values_of(part, last), digests(&["9"]));
    assert!(outline.values_of(part, 1).is_empty() && outline.values_of(part, last + 1).is_empty());
    let many = outline_of_values(100_000);
    assert!(many.values.len() <= VALUES_MAX && many.memory_bytes() < 64 << 10, "{}", many.memory_bytes());
}

fn outline_of_values(count: usize) -> Outline {
    let numbers: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    outline(Api::Completions, &json!({"prompt": numbers.join(" ")}))
}

proptest! {
    /// Cells cover the text, and a longer text keeps all but the last of them.
    #[test]
    fn cells_of_a_prefix_are_a_prefix_of_the_cells(text in "[a-z0-9 .\n-]{0,600}", more in "[a-z0-9 \n]{0,90}") {
        let of = |text: &str| outline(Api::Completions, &json!({"prompt": text}));
        let (short, long) = (of(&text), of(&(text.clone() + &more)));
        prop_assert_eq!(short.text_bytes(), text.len() as u64);
        let (short, long) = (short.cells_from(0, 0), long.cells_from(0, 0));
        // The last word may go on in the longer text.
        let kept = short.len().saturating_sub(2);
        prop_assert_eq!(&short[..kept], &long[..kept]);
    }
}
