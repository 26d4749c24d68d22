"""AlignOPSD written as plain loops over Python numbers, as METHODS.md reads: slow, and independent of the library."""

from __future__ import annotations

import itertools
import math


def select(similarity, eligible, trajectory, turn, threshold, top_k):
    """``{target: [source, ..]}``, best first."""
    chosen = {}
    rows = range(len(trajectory))
    for u in rows:
        best = {}
        for v in sorted(rows, key=lambda v: (trajectory[v], turn[v])):
            if not eligible[v][u] or similarity[v][u] < threshold:
                continue
            sibling = trajectory[v]
            if sibling not in best or similarity[v][u] > similarity[best[sibling]][u]:
                best[sibling] = v
        ranked = sorted(best.values(), key=lambda v: (-similarity[v][u], trajectory[v], turn[v]))
        chosen[u] = ranked[:top_k]
    return chosen


def eligibility(trajectory, group, source_valid, target_valid):
    """``[source][target]`` bool."""
    rows = range(len(trajectory))
    return [
        [
            group[trajectory[v]] == group[trajectory[u]]
            and trajectory[v] != trajectory[u]
            and source_valid[v]
            and target_valid[u]
            for u in rows
        ]
        for v in rows
    ]


def rectify(teacher, cross, similarity, chosen, threshold, temperature, alpha_max, mixture):
    """Rectified log-probs, confidence and strength of each row; ``cross[(source, target)]`` is a list over tokens."""
    logprobs, confidence, strength = [], [], []
    for u, own in enumerate(teacher):
        sources = chosen[u]
        if not sources:
            logprobs.append(list(own))
            confidence.append(0.0)
            strength.append(0.0)
            continue
        powers = [math.exp(similarity[v][u] / temperature) for v in sources]
        omega = [power / sum(powers) for power in powers]
        rho = sum(
            w * min(max((similarity[v][u] - threshold) / (1 - threshold), 0.0), 1.0)
            for w, v in zip(omega, sources, strict=True)
        )
        alpha = alpha_max * rho
        row = []
        for t, score in enumerate(own):
            if mixture == "probability":
                mixed = math.log(sum(w * math.exp(cross[v, u][t]) for w, v in zip(omega, sources, strict=True)))
            else:
                mixed = sum(w * cross[v, u][t] for w, v in zip(omega, sources, strict=True))
            row.append((1 - alpha) * score + alpha * mixed)
        logprobs.append(row)
        confidence.append(rho)
        strength.append(alpha)
    return logprobs, confidence, strength


def divergence(similarity, eligible, trajectory, turn, threshold, temperature):
    """``(D, defined)`` of each row."""
    rows = range(len(trajectory))
    at = {(trajectory[u], turn[u]): u for u in rows}

    def profile(u):
        powers = {v: math.exp(similarity[v][u] / temperature) for v in rows if eligible[v][u]}
        total = sum(powers.values())
        return {v: power / total for v, power in powers.items()}

    def reached(u):
        return any(eligible[v][u] and similarity[v][u] >= threshold for v in rows)

    values, defined = [], []
    for u in rows:
        before = at.get((trajectory[u], turn[u] - 1))
        p = profile(u)
        q = {} if before is None else profile(before)
        known = before is not None and reached(u) and reached(before) and p.keys() == q.keys()
        total = 0.0
        if known:
            for v in p:
                middle = (p[v] + q[v]) / 2
                for part in (p[v], q[v]):
                    if part > 0:
                        total += part * math.log(part / middle) / 2
        values.append(total / math.log(2))
        defined.append(known)
    return values, defined


def boundary_threshold(values, quantile=0.8, low=0.01, high=0.10):
    """Linear quantile, clipped."""
    if not values:
        return high
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    lower, upper = ordered[math.floor(place)], ordered[math.ceil(place)]
    return min(max(lower + (place - math.floor(place)) * (upper - lower), low), high)


def segment(scores, defined, threshold, min_span, max_span, floor=0.01):
    """Half-open spans of one trajectory whose turns have these divergences."""
    count = len(scores)
    cuts = [0, count]
    candidates = [k for k in range(1, count) if defined[k] and scores[k] > threshold]
    for k in sorted(candidates, key=lambda k: (-scores[k], k)):
        left = max(cut for cut in cuts if cut <= k)
        right = min(cut for cut in cuts if cut >= k)
        if k - left >= min_span and right - k >= min_span:
            cuts.append(k)
    while True:
        cuts.sort()
        spans = list(itertools.pairwise(cuts))
        long = [span for span in spans if span[1] - span[0] > max_span]
        if not long:
            return spans
        start, end = long[0]
        feasible = list(range(start + min_span, end - min_span + 1))
        wanted = [k for k in feasible if defined[k] and scores[k] >= floor]
        if wanted:
            cuts.append(min(wanted, key=lambda k: (-scores[k], k)))
        else:
            cuts.append(min(feasible, key=lambda k: (abs(k - (start + end) / 2), k)))


def project(x, n, lower, upper):
    """``clip(x - nu, lower, upper)`` with nu halved down until the total is met."""
    total = sum(n)
    low, high = min(x) - upper - 1, max(x) - lower + 1

    def spent(nu):
        return sum(k * min(max(value - nu, lower), upper) for value, k in zip(x, n, strict=True))

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > total else (low, middle)
    return [min(max(value - high, lower), upper) for value in x]


def project_by_sorting(x, n, lower, upper):
    """The same by walking over the sorted breakpoints, as fast as a loop gets."""
    total = sum(n)
    events = sorted(
        [(v - upper, k) for v, k in zip(x, n, strict=True)] + [(v - lower, -k) for v, k in zip(x, n, strict=True)]
    )
    left, slope, place = (upper - 1) * total, 0, events[0][0]
    for point, change in events:
        if left - slope * (point - place) <= 0:
            break
        left, place, slope = left - slope * (point - place), point, slope + change
    nu = place + left / slope if slope > 0 else place
    return [min(max(v - nu, lower), upper) for v in x]


def softmax(logits):
    """Of a list."""
    peak = max(logits)
    powers = [math.exp(logit - peak) for logit in logits]
    return [power / sum(powers) for power in powers]


def allocate(scores, n, spans, temperature, mix, lower, upper, solve=project):
    """Weights, densities before projection and budgets of one trajectory's turns; ``spans`` are half-open."""
    total = sum(n)
    betas = softmax(
        [math.log(sum(n[start:end])) + sum(scores[start:end]) / (end - start) / temperature for start, end in spans]
    )
    x, budgets = [], []
    for (start, end), beta in zip(spans, betas, strict=True):
        shares = softmax([math.log(n[k]) + scores[k] / temperature for k in range(start, end)])
        x += [total * beta * share / n[k] for share, k in zip(shares, range(start, end), strict=True)]
        budgets += [beta] * (end - start)
    y = solve(x, n, lower, upper)
    return [(1 - mix) + mix * value for value in y], x, budgets


def normalise(values, eps=1e-4):
    """``(v - mean) / (std + eps)`` with ddof = 1."""
    if len(values) < 2 or max(values) == min(values):
        return [0.0 for _ in values]
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return [(value - mean) / (std + eps) for value in values]


def group_advantages(rewards, group, eps=1e-4):
    """One advantage per trajectory."""
    result = [0.0] * len(rewards)
    for g in set(group):
        members = [i for i, other in enumerate(group) if other == g]
        for i, value in zip(members, normalise([rewards[i] for i in members], eps), strict=True):
            result[i] = value
    return result


def residual(rewards, valid, trajectory, group, penalty=0.1, eps=1e-4):
    """One residual per row."""
    result = [0.0] * len(trajectory)
    for g in set(group):
        rows = [m for m, i in enumerate(trajectory) if group[i] == g]
        plain = normalise([rewards[trajectory[m]] for m in rows], eps)
        fined = normalise([rewards[trajectory[m]] - penalty * (not valid[m]) for m in rows], eps)
        for m, a, b in zip(rows, plain, fined, strict=True):
            result[m] = b - a
    return result


def align_opsd(case, *, threshold=0.8, top_k=3, alpha_max=0.8, mixture="probability", mode="semantic", min_span=2,
               max_span=8, temperature=0.5, mix=0.5, lower=0.0, upper=4.0, random_scores=None):  # fmt: skip
    """``[M][T]`` advantages, spans ``{trajectory: [(start, end), ..]}`` and weights from a case of plain lists.

    ``case`` holds mask, trajectory, turn, group, reward, student, teacher, similarity, source_valid, target_valid and
    cross ``{(source, target): [..]}``; ``valid`` is optional.
    """
    trajectory, turn, mask = case["trajectory"], case["turn"], case["mask"]
    eligible = eligibility(trajectory, case["group"], case["source_valid"], case["target_valid"])
    chosen = select(case["similarity"], eligible, trajectory, turn, threshold, top_k)
    logprobs, _, _ = rectify(
        case["teacher"], case["cross"], case["similarity"], chosen, threshold, 0.1, alpha_max, mixture
    )
    values, defined = divergence(case["similarity"], eligible, trajectory, turn, threshold, 0.1)
    theta = boundary_threshold([value for value, known in zip(values, defined, strict=True) if known])
    advantages = group_advantages(case["reward"], case["group"])
    extra = residual(case["reward"], case["valid"], trajectory, case["group"]) if case.get("valid") else None
    out = [[0.0] * len(row) for row in mask]
    all_spans, weights = {}, [1.0] * len(trajectory)
    for i, advantage in enumerate(advantages):
        rows = sorted((m for m, owner in enumerate(trajectory) if owner == i), key=lambda m: turn[m])
        sign = (advantage > 0) - (advantage < 0)
        gaps = [[p - s for p, s, m in zip(logprobs[r], case["student"][r], mask[r], strict=True) if m] for r in rows]
        n = [len(gap) for gap in gaps]
        if mode == "random":
            scores = [random_scores[i][k] for k in range(len(rows))]
            spans = segment(scores, [True] * len(rows), -1.0, min_span, max_span, floor=-1.0)
        elif mode == "semantic":
            spans = segment([values[r] for r in rows], [defined[r] for r in rows], theta, min_span, max_span)
        else:
            spans = [(0, len(rows))]
        all_spans[i] = spans
        if mode == "token":
            flat = [sign * value for gap in gaps for value in gap]
            per_token, _, _ = allocate(flat, [1] * len(flat), [(0, len(flat))], temperature, 1.0, lower, upper)
        else:
            scores = [sign * sum(gap) / len(gap) for gap in gaps]
            per_turn, _, _ = allocate(scores, n, spans, temperature, mix, lower, upper)
            per_token = [w for w, size in zip(per_turn, n, strict=True) for _ in range(size)]
        place = 0
        for r, size in zip(rows, n, strict=True):
            weights[r] = sum(per_token[place : place + size]) / size
            for t, sampled in enumerate(mask[r]):
                if sampled:
                    out[r][t] = advantage * per_token[place] + (extra[r] if extra else 0.0)
                    place += 1
    return out, all_spans, weights
