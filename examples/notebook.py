"""A tour in cells (``# %%``), for editors and notebooks that know them: measure, look, compare, attack, certify, report."""

# %% Two encoders that come with the library, on small images of digits
import holdfast as hf

robust = hf.load_encoder("builtin:digits-robust")
plain = hf.load_encoder("builtin:digits-random")
images = hf.load_images("builtin:digits", robust, limit=24)

# %% Can two images be moved past each other?
fast = {"overlap": {"attacks": ["adaptive:restarts=1,steps=10"], "samples": 12}}
run = hf.evaluate([robust, plain], images, only="overlap", eps=["8/255", 0.1], settings=fast)
print(run)

# %% Every number, with its interval and what it claims
run.table()

# %% Who is better, image by image?
for contest in hf.compare(run).contests:
    print(contest.quantity, contest.conditions.get("ball"), contest.pairs[0].difference.outcome)

# %% How far does an attack move the codes?
found = hf.attack(robust, images, hf.Linf(8 / 255), attack="pgd:steps=10")
print("moved by", float((found.codes - found.clean_codes).norm(dim=1).median()))

# %% What is proved?
record = hf.certify(robust, images, "linf:1/255", negatives=3, limit=8, attack="pgd:steps=10")
print(record.counted("CERTIFIED"), "of", len(record.certificates), "images keep their nearest other images at bay")

# %% A bound for continuous integration, and the page to hand on
assert all(answer.passed for answer in hf.check(run, "overlap_risk@8/255,encoder=digits-robust<=0.9"))
print(run.report("runs/notebook"))
