//! Whether a template expects message contents as text or as lists of parts.
//!
//! vLLM decides by the template's syntax: a template that loops over a message's content gets lists, even for
//! strings; any other gets parts joined into one text. This module applies the same rules, with the same
//! blind spots, to minijinja's syntax tree. (That tree is an unstable interface; the golden tests detect
//! changes.)

use minijinja::machinery::ast::{Call, CallArg, Expr, ForLoop, Macro, Stmt};

/// Format of contents for a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// One text, with parts joined by line breaks.
    Text,
    /// A list of parts.
    Parts,
}

impl ContentFormat {
    /// Format that a parsed template expects.
    pub fn of(template: &Stmt<'_>) -> ContentFormat {
        let mut nodes = Nodes::default();
        nodes.statement(template, None);
        match nodes.loops_over_content() {
            Some(true) => ContentFormat::Parts,
            // vLLM falls back to text for a loop or an assignment of an unexpected form.
            Some(false) | None => ContentFormat::Text,
        }
    }
}

/// Relevant nodes at any depth.
#[derive(Default)]
struct Nodes<'t> {
    assignments: Vec<(&'t Expr<'t>, &'t Expr<'t>)>,
    /// Loops, each with the macro that contains it.
    loops: Vec<(&'t ForLoop<'t>, Option<usize>)>,
    macros: Vec<&'t Macro<'t>>,
    calls: Vec<&'t Call<'t>>,
}

impl<'t> Nodes<'t> {
    fn statements(&mut self, statements: &'t [Stmt<'t>], within: Option<usize>) {
        statements.iter().for_each(|statement| self.statement(statement, within));
    }

    fn statement(&mut self, statement: &'t Stmt<'t>, within: Option<usize>) {
        match statement {
            Stmt::Template(node) => self.statements(&node.children, within),
            Stmt::EmitExpr(node) => self.expression(&node.expr),
            Stmt::ForLoop(node) => {
                self.loops.push((node, within));
                self.expression(&node.iter);
                node.filter_expr.iter().for_each(|filter| self.expression(filter));
                self.statements(&node.body, within);
                self.statements(&node.else_body, within);
            }
            Stmt::IfCond(node) => {
                self.expression(&node.expr);
                self.statements(&node.true_body, within);
                self.statements(&node.false_body, within);
            }
            Stmt::WithBlock(node) => {
                node.assignments.iter().for_each(|(_, value)| self.expression(value));
                self.statements(&node.body, within);
            }
            Stmt::Set(node) => {
                self.assignments.push((&node.target, &node.expr));
                self.expression(&node.expr);
            }
            Stmt::SetBlock(node) => self.statements(&node.body, within),
            Stmt::AutoEscape(node) => self.statements(&node.body, within),
            Stmt::FilterBlock(node) => self.statements(&node.body, within),
            Stmt::Macro(node) => {
                self.macros.push(node);
                self.statements(&node.body, Some(self.macros.len() - 1));
            }
            Stmt::CallBlock(node) => {
                self.call(&node.call);
                self.statements(&node.macro_decl.body, within);
            }
            Stmt::Do(node) => self.call(&node.call),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        }
    }

    fn expressions(&mut self, expressions: &'t [Expr<'t>]) {
        expressions.iter().for_each(|expression| self.expression(expression));
    }

    fn expression(&mut self, expression: &'t Expr<'t>) {
        match expression {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(node) => {
                self.expression(&node.expr);
                [&node.start, &node.stop, &node.step]
                    .into_iter()
                    .flatten()
                    .for_each(|at| self.expression(at));
            }
            Expr::UnaryOp(node) => self.expression(&node.expr),
            Expr::BinOp(node) => {
                self.expression(&node.left);
                self.expression(&node.right);
            }
            Expr::Compare(node) => {
                self.expression(&node.expr);
                node.ops.iter().for_each(|op| self.expression(&op.expr));
            }
            Expr::IfExpr(node) => {
                self.expression(&node.test_expr);
                self.expression(&node.true_expr);
                node.false_expr.iter().for_each(|other| self.expression(other));
            }
            Expr::Filter(node) => {
                node.expr.iter().for_each(|value| self.expression(value));
                self.arguments(&node.args);
            }
            Expr::Test(node) => {
                self.expression(&node.expr);
                self.arguments(&node.args);
            }
            Expr::GetAttr(node) => self.expression(&node.expr),
            Expr::GetItem(node) => {
                self.expression(&node.expr);
                self.expression(&node.subscript_expr);
            }
            Expr::Call(node) => self.call(node),
            Expr::List(node) => self.expressions(&node.items),
            Expr::Tuple(node) => self.expressions(&node.items),
            Expr::Map(node) => {
                self.expressions(&node.keys);
                self.expressions(&node.values);
            }
        }
    }

    fn call(&mut self, call: &'t Call<'t>) {
        self.calls.push(call);
        self.expression(&call.expr);
        self.arguments(&call.args);
    }

    fn arguments(&mut self, arguments: &'t [CallArg<'t>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    /// Whether a loop runs over content; `None` if a name was expected and another expression found.
    fn loops_over_content(&self) -> Option<bool> {
        let messages = self.message_names()?;
        let is_content = |value: &Expr<'_>| messages.iter().any(|name| reads(value, name, Some("content")));
        for &(node, within) in &self.loops {
            let is_bare = |wanted: &str| matches!(&node.iter, Expr::Var(var) if var.id == wanted);
            let is_hit = is_content(&node.iter)
                || match within {
                    Some(within) => self.content_parameters(self.macros[within], &is_content).any(is_bare),
                    None => is_bare("content"),
                };
            if is_hit {
                return name_of(&node.target).map(|_| true);
            }
        }
        Some(false)
    }

    /// Names of single messages: targets of loops over `messages` or over a variable assigned from it.
    fn message_names(&self) -> Option<Vec<&'t str>> {
        let mut lists = vec!["messages"];
        let mut done = 0;
        while let Some(&list) = lists.get(done) {
            done += 1;
            for (target, value) in &self.assignments {
                if reads(value, list, None) {
                    let name = name_of(target)?;
                    if !lists.contains(&name) {
                        lists.push(name);
                    }
                }
            }
        }
        let over_messages =
            self.loops.iter().filter(|(node, _)| lists.iter().any(|list| reads(&node.iter, list, None)));
        over_messages.map(|(node, _)| name_of(&node.target)).collect()
    }

    /// Parameters of a macro that receive a message's content in some call.
    fn content_parameters(
        &self,
        node: &'t Macro<'t>,
        is_content: &impl Fn(&Expr<'_>) -> bool,
    ) -> impl Iterator<Item = &'t str> {
        let calls =
            self.calls.iter().filter(|call| matches!(&call.expr, Expr::Var(var) if var.id == node.name));
        let arguments = calls.flat_map(|call| {
            call.args.iter().enumerate().filter_map(|(at, argument)| match argument {
                CallArg::Pos(value) if is_content(value) => node.args.get(at).and_then(name_of),
                CallArg::Kwarg(name, value) if is_content(value) => Some(*name),
                _ => None,
            })
        });
        arguments.collect::<Vec<_>>().into_iter()
    }
}

fn name_of<'t>(target: &Expr<'t>) -> Option<&'t str> {
    match target {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// Whether an expression is the variable, or that attribute of it, possibly filtered, tested or sliced.
fn reads(value: &Expr<'_>, name: &str, attribute: Option<&str>) -> bool {
    let is_variable = |value: &Expr<'_>| matches!(value, Expr::Var(var) if var.id == name);
    match (value, attribute) {
        (Expr::Filter(node), _) => node.expr.as_ref().is_some_and(|value| reads(value, name, attribute)),
        (Expr::Test(node), _) => reads(&node.expr, name, attribute),
        (Expr::Slice(node), _) => reads(&node.expr, name, attribute),
        (Expr::GetAttr(node), Some(attribute)) => node.name == attribute && is_variable(&node.expr),
        (Expr::GetItem(node), Some(attribute)) => {
            is_variable(&node.expr)
                && matches!(&node.subscript_expr, Expr::Const(key) if key.value.as_str() == Some(attribute))
        }
        (value, None) => is_variable(value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(source: &str) -> ContentFormat {
        ContentFormat::of(&minijinja::machinery::parse(source, "", Default::default()).unwrap())
    }

    #[test]
    fn only_a_loop_over_content_asks_for_parts() {
        let parts = [
            "{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}",
            "{% for m in messages[1:] %}{% for c in m.content | list %}{{ c }}{% endfor %}{% endfor %}",
            "{% set rest = messages[1:] %}{% set more = rest %}{% for m in more %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% macro show(what) %}{% for c in what %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "{% macro show(what) %}{% for c in what %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(what=m['content']) }}{% endfor %}",
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}{{ c }}{% endfor %}{% endfor %}",
        ];
        let text = [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for c in content %}{{ c }}{% endfor %}{% endmacro %}{{ show(messages[0].content) }}",
            "{% set a, b = messages %}{% for c in content %}{% endfor %}{{ a }}",
            "{% set ns.messages = messages %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
        ];
        parts.iter().for_each(|source| assert_eq!(format(source), ContentFormat::Parts, "{source}"));
        text[..3].iter().for_each(|source| assert_eq!(format(source), ContentFormat::Text, "{source}"));
        assert_eq!(format(text[4]), ContentFormat::Text, "vLLM gives up at a target that is no name");
        assert_eq!(format(text[3]), ContentFormat::Text);
    }
}
