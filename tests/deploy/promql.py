"""Which metrics and labels a PromQL query uses. Reads the language's expressions, not all of its rules: no subqueries, no @."""

import re

AGGREGATIONS = {"sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "topk", "bottomk", "quantile",
                "count_values"}
MATCHING = {"on", "ignoring", "group_left", "group_right"}
TOKEN = re.compile(r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<range>\[[^\]]*\])
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:ms|[smhdwy])?)
  | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
  | (?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^<>={},()])
)""", re.X)


class Selector:
    """metric{matchers}[range]"""

    def __init__(self, metric):
        self.metric = metric
        self.matchers = []    # (label, operator, value)
        self.grouped = set()  # labels that aggregations around it keep, or that match it with another
        self.functions = []   # around it, the innermost first
        self.ranged = False


class Query:
    def __init__(self, text):
        self.text = text
        self.tokens = []
        at = 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            if not match:
                raise ValueError(f"cannot read {text[at:]!r} in {text!r}")
            self.tokens.append((match.lastgroup, match.group(match.lastgroup)))
            at = match.end()
        self.at = 0
        self.aggregated = False
        self.selectors = self._expression()
        if self.at != len(self.tokens):
            raise ValueError(f"{self._peek()!r} is left over in {text!r}")

    def _peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def _take(self, wanted=None):
        kind, value = self._peek()
        if wanted is not None and value != wanted:
            raise ValueError(f"{wanted!r} expected before {value!r} in {self.text!r}")
        self.at += 1
        return value

    def _labels(self):
        labels = set()
        self._take("(")
        while self._peek()[1] != ")":
            labels.add(self._take())
            if self._peek()[1] == ",":
                self._take()
        self._take(")")
        return labels

    def _expression(self):
        selectors = self._operand()
        while self._peek()[1] in {"+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "and", "or", "unless"}:
            self._take()
            if self._peek()[1] == "bool":
                self._take()
            matched = set()
            while self._peek()[1] in MATCHING:
                word = self._take()
                labels = self._labels() if self._peek()[1] == "(" else set()
                matched |= labels if word == "on" else set()
            selectors = selectors + self._operand()
            for selector in selectors:
                selector.grouped |= matched
        return selectors

    def _operand(self):
        kind, value = self._peek()
        if value in {"-", "+"}:
            self._take()
            return self._operand()
        if value == "(":
            self._take()
            selectors = self._expression()
            self._take(")")
            return selectors
        self._take()
        if kind in {"number", "string"}:
            return []
        if kind == "operator" and value == "{":
            raise ValueError(f"a selector without a metric in {self.text!r}")
        if kind != "name":
            raise ValueError(f"{value!r} is out of place in {self.text!r}")
        if value in AGGREGATIONS and self._peek()[1] in {"(", "by", "without"}:
            return self._aggregation()
        if self._peek()[1] == "(":
            return self._call(value)
        return [self._selector(value)]

    def _aggregation(self):
        self.aggregated = True
        grouped = self._grouping()
        selectors = self._arguments()
        grouped |= self._grouping()
        for selector in selectors:
            selector.grouped |= grouped
        return selectors

    def _grouping(self):
        if self._peek()[1] not in {"by", "without"}:
            return set()
        keeps = self._take() == "by"
        labels = self._labels()
        return labels if keeps else set()

    def _call(self, function):
        selectors = self._arguments()
        for selector in selectors:
            selector.functions.append(function)
        return selectors

    def _arguments(self):
        selectors = []
        self._take("(")
        while self._peek()[1] != ")":
            selectors += self._expression()
            if self._peek()[1] == ",":
                self._take()
        self._take(")")
        return selectors

    def _selector(self, metric):
        selector = Selector(metric)
        if self._peek()[1] == "{":
            self._take()
            while self._peek()[1] != "}":
                label, operator, value = self._take(), self._take(), self._take()
                if operator not in {"=", "!=", "=~", "!~"} or value[:1] not in "\"'":
                    raise ValueError(f"{label}{operator}{value} is no matcher in {self.text!r}")
                selector.matchers.append((label, operator, value[1:-1]))
                if self._peek()[1] == ",":
                    self._take()
            self._take("}")
        if self._peek()[0] == "range":
            self._take()
            selector.ranged = True
        if self._peek()[1] == "offset":
            self._take()
            self._take()
        return selector
