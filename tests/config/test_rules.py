"""Rules between options: each broken alone is one problem that names the options; none is a consequence of another."""

from __future__ import annotations

import pytest

from slime.config import ConfigError, load

BASE = ["--hf-checkpoint", "model", "--rollout-batch-size", "4"]

BROKEN = [
    ("--n-samples-per-prompt 3 --global-batch-size 8", "4 prompts x 3 samples = 12 samples a rollout, which is not 1"),
    ("--n-samples-per-prompt 3 --num-steps-per-rollout 5", "which is not 5 steps x 2"),
    ("--n-samples-per-prompt 4 --num-steps-per-rollout 2 --global-batch-size 16", "which is not 2 steps x 16"),
    ("--global-batch-size 100", "which is not 1 steps x 100"),
    (
        "--num-steps-per-rollout 5 --global-batch-size 7",
        "e.g. --num-steps-per-rollout 1 --global-batch-size 4 or --num-steps-per-rollout 2 --global-batch-size 2 or",
    ),
    ("--use-dynamic-batch-size", "--use-dynamic-batch-size: needs --max-tokens-per-gpu"),
    ("--max-tokens-per-gpu 8 --log-probs-max-tokens-per-gpu 16", "micro-batches have a number of samples"),
    (
        "--use-dynamic-batch-size --max-tokens-per-gpu 8 --log-probs-max-tokens-per-gpu 16 --use-routing-replay",
        "--log-probs-max-tokens-per-gpu, --use-routing-replay: training takes the experts of the pass",
    ),
    (
        "--enable-mtp-training --recompute-granularity full --recompute-method block --recompute-num-layers 1",
        "--enable-mtp-training: Megatron recomputes such a layer as one of uniform blocks of one",
    ),
    (
        "--recompute-granularity full",
        "--recompute-granularity: full recomputes whole layers, and needs --recompute-method and --recompute-num",
    ),
    ("--recompute-granularity full --recompute-method block", "whole layers, and needs --recompute-num-layers\n"),
    ("--recompute-granularity full --recompute-num-layers 1", "whole layers, and needs --recompute-method\n"),
    (
        "--recompute-granularity full --enable-mtp-training",
        "--recompute-granularity: full recomputes whole layers, and needs",
    ),
    (
        "--recompute-granularity selective --recompute-num-layers 1",
        "--recompute-num-layers: counts whole layers, and --recompute-granularity selective recomputes parts of each",
    ),
    (
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 0",
        "--recompute-num-layers: 0 is no number of layers",
    ),
    (
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
        " --distribute-saved-activations --tensor-model-parallel-size 2 --sequence-parallel",
        "--distribute-saved-activations, --sequence-parallel: exclude each other",
    ),
    ("--overlap-param-gather", "--overlap-param-gather: needs --overlap-grad-reduce: without it all parameters are"),
    (
        "--overlap-param-gather --overlap-grad-reduce --no-use-distributed-optimizer",
        "--overlap-param-gather, --no-use-distributed-optimizer: only the distributed optimizer divides the parameters",
    ),
    ("--use-megatron-fsdp", "--use-megatron-fsdp: another wrapper of the model: weights and checkpoints are read from"),
    ("--num-distributed-optimizer-instances 2", "--num-distributed-optimizer-instances: needs groups of ranks"),
    ("--hierarchical-context-parallel-sizes 2 4", "--hierarchical-context-parallel-sizes: needs groups of ranks"),
    ("--average-in-collective", "--average-in-collective: the loss is divided already, so that gradients are summed"),
    ("--delay-wgrad-compute", "--delay-wgrad-compute: Megatron delays gradients beside --overlap-moe-expert-parallel"),
    ("--hidden-dropout 0.1", "--hidden-dropout: 0.1 would also be dropped out in the passes that score"),
    ("--attention-dropout 0.2", "--attention-dropout: 0.2 would also be dropped out in the passes that score"),
    ("--profile-target train_actor --profile-step-start 3 --profile-step-end 3", "3 is not above --profile-step-start"),
    ("--profile-target train_actor --num-rollout 5", "--profile-step-start: 10 is after the last of the 5 rollouts"),
    ("--num-rollout 40 --start-rollout-id 50", "--start-rollout-id: 50 is after the last of the 40 rollouts"),
    ("--num-rollout 40 --start-rollout-id 40", "--start-rollout-id: 40 is after the last of the 40 rollouts"),
    ("--memory-snapshot-num-steps 2", "--memory-snapshot-num-steps: is about a recording of memory"),
    ("--virtual-pipeline-model-parallel-size 2", "2 virtual stages need a pipeline of several ranks"),
    ("--sglang-mem-fraction-static 7", "--sglang-mem-fraction-static: 7 is not a share of the memory"),
    ("--save-interval 5", "--save-interval: needs a place to save to"),
    ("--optimizer-cpu-offload --no-bf16", "--optimizer-cpu-offload: is for --bf16"),
    (
        "--bf16 --optimizer-cpu-offload --no-use-distributed-optimizer",
        "--optimizer-cpu-offload, --no-use-distributed-optimizer: exclude each other",
    ),
    ("--prompt-data a.jsonl b.jsonl --prompt-data-weights 1", "1 weights for 2 files of --prompt-data"),
    ("--save-keep 2", "--save-keep: is about the checkpoints of --save"),
    ("--async-save", "--async-save: is about the checkpoints of --save"),
    ("--ckpt-step 0", "--ckpt-step: is about the checkpoint of --load"),
    ("--finetune", "--finetune: is about the checkpoint of --load"),
    ("--save-interval 5 --save-hf out", "'out' is the same directory for every rollout"),
    ("--save-hf out/{step}", "a placeholder other than {rollout_id}"),
    ("--eval-interval 5", "--eval-interval: needs data to evaluate on"),
    ("--eval-prompt-data gsm", "takes pairs of name and path"),
    ("--eval-prompt-data gsm a.jsonl gsm b.jsonl", "the name 'gsm' is given twice"),
    ("--over-sampling-batch-size 3", "3 prompts are less than --rollout-batch-size 4"),
    (
        "--dynamic-sampling-filter-path slime.rollout.filters.check_reward_nonzero_std",
        "would drop every group: with --n-samples-per-prompt 1 its only reward is equal to itself",
    ),
    ("--update-weight-disk-dir d", "--update-weight-disk-dir: is for --update-weight-transport disk"),
    (
        "--colocate --update-weight-transport disk --update-weight-disk-keep-files",
        "--update-weight-disk-keep-files: is for --update-weight-transport disk, and colocated halves share memory",
    ),
    ("--http-proxy proxy:80 --rm-url http://x:1", "--http-proxy: 'proxy:80' is no address"),
    ("--http-proxy http://proxy:80", "--http-proxy: is for --rm-url"),
    (
        "--disable-rollout-global-dataset --num-rollout 2",
        "--disable-rollout-global-dataset: leaves every prompt empty, and nothing fills them",
    ),
    (
        "--disable-rollout-global-dataset --custom-generate-function-path a.b --num-epoch 2",
        "leaves no prompts to count, so --num-epoch says nothing",
    ),
    (
        "--disable-rollout-global-dataset --custom-generate-function-path a.b --num-rollout 2 --prompt-data a.jsonl",
        "--disable-rollout-global-dataset, --prompt-data: exclude each other",
    ),
    ("--partial-rollout", "--partial-rollout: nothing would ever be aborted"),
    ("--mask-offpolicy-in-partial-rollout", "there are no partial rollouts"),
    ("--buffer-filter-path a.b --data-source-path a.c", "is for the buffer of the prompt files"),
    ("--use-kl-loss", "--use-kl-loss: needs a reference model"),
    ("--kl-coef 0.1", "--kl-coef: needs a reference model"),
    ("--kl-coef 0.1 --kl-loss-coef 0.1 --ref-load model", "exclude each other"),
    ("--ref-ckpt-step 2", "--ref-ckpt-step: is about the checkpoint of --ref-load"),
    ("--opd-teacher-ckpt-step 2", "--opd-teacher-ckpt-step: is about the checkpoint of --opd-teacher-load"),
    ("--ref-update-interval 2", "there is no reference that anything is compared with"),
    ("--advantage-estimator reinforce_plus_plus", "made for advantages of zero mean and unit variance"),
    ("--advantage-estimator reinforce_plus_plus_baseline", "made for advantages of zero mean and unit variance"),
    ("--gamma 0.9", "grpo does not discount"),
    ("--advantage-estimator cispo --eps-clip-c 3", "cispo has no dual clip"),
    ("--lambd 0.9", "--lambd: there is no critic that it is about"),
    ("--num-critic-only-steps 3", "--num-critic-only-steps: there is no critic that it is about"),
    ("--advantage-estimator ppo --critic-num-gpus-per-node 4", "the critic has 4 ranks, the policy 8"),
    ("--advantage-estimator ppo --critic-num-nodes 2", "the critic has 16 ranks, the policy 8"),
    ("--advantage-estimator ppo --num-rollout 3 --num-critic-only-steps 3", "none of the 3 rollouts for the policy"),
    (
        "--advantage-estimator ppo --save out --no-use-distributed-optimizer",
        "--no-use-distributed-optimizer: Megatron's other optimizer can't save",
    ),
    ("--advantage-estimator ppo --critic-save out", "--critic-save: nothing could go on from a critic alone"),
    ("--advantage-estimator ppo --save out --critic-save out", "--critic-save: is --save itself"),
    ("--advantage-estimator ppo --save out --save-keep 1", "--save-keep: 1 leaves no rollout of which"),
    ("--loss-type custom_loss", "--loss-type custom_loss: needs a function"),
    ("--loss-type custom_loss --custom-loss-function-path a.b --log-probs-chunk-size 9", "is given all logits"),
    ("--custom-loss-function-path a.b", "is not used by --loss-type policy_loss"),
    ("--disable-compute-advantages-and-returns", "the policy loss is made of advantages"),
    (
        "--loss-type custom_loss --custom-loss-function-path a.b --disable-compute-advantages-and-returns"
        " --use-kl-loss --ref-load model",
        "--use-kl-loss, --disable-compute-advantages-and-returns: exclude each other",
    ),
    ("--use-rollout-routing-replay --loss-type sft_loss", "--loss-type sft_loss has no engine that chose experts"),
    ("--use-routing-replay --loss-type sft_loss", "the trainer does not run the model before the update"),
    ("--use-routing-replay --use-rollout-logprobs", "the trainer does not run the model before the update"),
    (
        "--use-routing-replay --loss-type custom_loss --custom-loss-function-path a.b"
        " --disable-compute-advantages-and-returns",
        "the trainer does not run the model before the update",
    ),
    ("--use-routing-replay --moe-router-fusion", "--use-routing-replay, --moe-router-fusion: the fused router chooses"),
    ("--use-rollout-routing-replay --moe-router-fusion", "--use-rollout-routing-replay, --moe-router-fusion"),
    ("--use-tis --use-mis", "--use-tis, --use-mis: exclude each other"),
    ("--use-tis --use-rollout-logprobs", "--use-tis, --use-rollout-logprobs: exclude each other"),
    ("--use-mis --use-rollout-logprobs", "--use-mis, --use-rollout-logprobs: exclude each other"),
    ("--custom-tis-function-path a.b", "--custom-tis-function-path: is not used"),
    ("--custom-tis-function-path a.b --use-mis", "exclude each other"),
    ("--keep-old-actor", "samples are of the current weights anyway"),
    ("--keep-old-actor --async-depth 1 --use-rollout-logprobs", "both say what the old log-probs are"),
    (
        "--keep-old-actor --async-depth 1 --update-weights-interval 2",
        "--keep-old-actor, --update-weights-interval: exclude each other: the weights of one update ago",
    ),
    ("--tis-clip 1 --tis-clip-low 1", "1.0 is not below --tis-clip 1.0"),
    ("--mis-clip 0.5 --mis-clip-low 1", "1.0 is not below --mis-clip 0.5"),
    ("--opd-type sglang", "--opd-type: is not used without distillation"),
    ("--opd-teacher-load model", "--opd-teacher-load: is not used without distillation"),
    ("--use-opd", "where do the teacher's log-probs come from?"),
    ("--use-opd --opd-type megatron", "megatron needs the teacher's weights"),
    ("--use-opd --opd-type sglang --opd-teacher-load model", "the rollout brings the log-probs"),
    ("--freeze-params-name-list (", "'(' is not a regular expression"),
    ("--lr-decay-style linear --lr 1e-6 --min-lr 1e-5", "--min-lr: 1e-05 is above --lr 1e-06"),
    (
        "--lr-decay-style linear --lr 1e-4 --min-lr 1e-5 --advantage-estimator ppo --critic-lr 1e-6",
        "--min-lr: 1e-05 is above --critic-lr 1e-06",
    ),
    ("--lr-decay-style linear --lr 1e-6 --min-lr 1e-5 --advantage-estimator ppo", "--min-lr: 1e-05 is above --lr 1"),
    ("--lr-decay-style cosine --lr-warmup-iters 10 --lr-decay-iters 10", "leaves nothing of --lr-decay-iters 10"),
    ("--lr-decay-style linear --lr-warmup-iters 10 --num-rollout 9", "leaves nothing of the 9 optimizer steps"),
    (
        "--lr-decay-style linear --lr-warmup-iters 7 --num-rollout 10 --advantage-estimator ppo"
        " --num-critic-only-steps 3",
        "leaves nothing of the 7 optimizer steps",
    ),
    ("--lr-decay-style linear --lr-warmup-iters 10 --num-rollout 9", "a fifth would be --lr-warmup-iters 1"),
    ("--lr-decay-style linear --num-epoch 1", "linear over how many steps?"),
    ("--group-rm", "--group-rm: needs --custom-rm-path"),
    ("--rm-type exact_match", "exact_match compares with a label"),
    ("--rm-type boxed_f1", "f1 compares with a label"),
    ("--rm-type judge", "judge asks a service"),
    ("--rm-type dapo --label-key label", "dapo gives a dict of score, acc and pred"),
    ("--rm-type remote_rm --rm-url host:8000", "'host:8000' is no address"),
    ("--rollout-max-response-len 10 --rollout-max-context-len 5", "10 tokens exceed --rollout-max-context-len 5"),
    ("--async-depth 1 --colocate", "1 trains and generates at once, --colocate in turns"),
    ("--max-weight-staleness 0 --colocate", "trains and generates at once, --colocate in turns"),
    ("--max-weight-staleness 1 --async-depth 1", "one stops generation for each weight update, the other never"),
    ("--max-weight-staleness 1 --loss-type sft_loss", "nothing is generated"),
    ("--max-weight-staleness 1 --keep-old-actor", "with --max-weight-staleness samples are of several"),
    ("--stale-group-policy drop", "nothing is ever too old without a bound"),
    ("--update-weights-interval 2", "2 leaves the engines with old weights"),
    (
        "--update-weights-interval 2 --async-depth 1 --use-fault-tolerance",
        "an engine that comes back between two updates",
    ),
    (
        "--update-weights-interval 2 --max-weight-staleness 1 --eval-interval 3 --eval-prompt-data a a.jsonl",
        "3 is no multiple of --update-weights-interval 2",
    ),
    ("--actor-num-gpus-per-node 16", "16 are more than the 8 devices of a node"),
    ("--colocate --actor-num-gpus-per-node 6 --rollout-num-gpus-per-engine 4 --rollout-num-gpus 4", "straddle"),
    ("--rollout-num-gpus 4 --rollout-num-gpus-per-engine 8", "8 does not divide --rollout-num-gpus 4"),
    ("--rollout-num-gpus 6 --rollout-num-gpus-per-engine 3", "engines of 3 devices do not fit nodes of 8"),
    ("--tensor-model-parallel-size 3", "8 ranks are not a multiple of TP 3 x PP 1 x CP 1 = 3"),
    ("--expert-model-parallel-size 16", "8 ranks are not a multiple of EP 16 x ETP 1 x PP 1 = 16"),
    (
        "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
        "together with tensor parallelism needs sequence parallelism",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("stop", "message"), [("", "an empty text is in"), ("a\udcff", "half of a surrogate pair")])
def test_stops_that_are_no_texts_are_said(stop, message):
    with pytest.raises(ConfigError) as caught:
        load([*BASE, "--rollout-stop", "b", stop])
    assert [message in str(problem) for problem in caught.value.problems] == [True]


@pytest.mark.parametrize(("options", "message"), BROKEN)
def test_a_broken_rule_is_one_problem(options, message):
    with pytest.raises(ConfigError) as caught:
        load([*BASE, *options.split()])
    (problem,) = caught.value.problems
    assert message in str(problem)
    assert problem.fix


@pytest.mark.parametrize(
    "options",
    [
        "--n-samples-per-prompt 3 --global-batch-size 4",
        "--use-dynamic-batch-size --max-tokens-per-gpu 100",
        "--save-interval 5 --save-hf out/{rollout_id}",
        "--save-interval 5 --save out --save-keep 1 --load out --ckpt-step 0",
        "--eval-interval 5 --eval-prompt-data a a.jsonl b b.jsonl",
        "--max-weight-staleness 2 --update-weights-interval 2 --stale-group-policy retry --partial-rollout",
        "--use-kl-loss --kl-loss-coef 0.1 --ref-load model --ref-update-interval 5",
        "--advantage-estimator reinforce_plus_plus --normalize-advantages --gamma 0.9",
        "--loss-type custom_loss --custom-loss-function-path a.b --disable-compute-advantages-and-returns",
        "--advantage-estimator ppo --gamma 0.99 --lambd 0.95 --critic-num-nodes 1 --num-critic-only-steps 3"
        " --value-clip 1",
        "--advantage-estimator ppo --save out --load out --save-keep 2",
        "--use-rollout-logprobs --get-mismatch-metrics --custom-tis-function-path a.b",
        "--use-opd --opd-type megatron --opd-teacher-load model",
        "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel",
        "--rollout-num-gpus 16 --rollout-num-gpus-per-engine 16",
        "--lr-warmup-iters 100 --num-rollout 9",
        "--tensor-model-parallel-size 2 --context-parallel-size 2 --pipeline-model-parallel-size 2",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
        "--recompute-granularity selective",
        "--overlap-param-gather --overlap-grad-reduce",
        "--lr-decay-style linear --lr-warmup-iters 6 --num-rollout 10 --advantage-estimator ppo"
        " --num-critic-only-steps 3",
        "--lr 1e-6 --min-lr 1e-5",
        "--loss-type sft_loss --hidden-dropout 0.1 --attention-dropout 0.1",
        "--hidden-dropout 0 --num-distributed-optimizer-instances 1 --no-average-in-collective --no-use-megatron-fsdp",
        "--overlap-grad-reduce --no-use-distributed-optimizer",
    ],
)
def test_a_kept_rule_is_silent(options):
    load([*BASE, *options.split()])


@pytest.mark.parametrize(("role", "of"), [("actor", "grpo"), ("critic", "ppo")])
def test_what_one_role_alone_is_given_is_judged_with_what_it_shares(tmp_path, role, of):
    file = tmp_path / "roles.yaml"
    words = [*BASE, "--advantage-estimator", of, "--megatron-config-path", str(file)]
    file.write_text(f"{role}: {{recompute_granularity: full, recompute_method: uniform}}\n")
    with pytest.raises(ConfigError) as caught:
        load(words)
    (problem,) = caught.value.problems
    assert "needs --recompute-num-layers" in str(problem)
    load([*words, "--recompute-num-layers", "1"])
    load([*words, "--debug-rollout-only"])


def test_a_rate_of_one_role_alone_is_judged_with_the_one_that_it_decays_to(tmp_path):
    file = tmp_path / "roles.yaml"
    words = [*BASE, "--advantage-estimator", "ppo", "--megatron-config-path", str(file), "--lr-decay-style", "linear"]
    file.write_text("critic: {lr: 1.0e-7}\n")
    with pytest.raises(ConfigError) as caught:
        load([*words, "--num-rollout", "9", "--min-lr", "1e-6"])
    (problem,) = caught.value.problems
    assert "--min-lr: 1e-06 is above --critic-lr 1e-07" in str(problem)
    load([*words, "--num-rollout", "9", "--min-lr", "1e-8"])


def test_a_rule_is_not_judged_by_an_option_that_is_wrong_itself():
    with pytest.raises(ConfigError) as caught:
        load([*BASE, "--global-batch-size", "x", "--n-samples-per-prompt", "3"])
    assert len(caught.value.problems) == 1


def test_a_rule_is_not_judged_by_what_would_follow_from_an_option_that_is_missing():
    with pytest.raises(ConfigError) as caught:
        load(["--hf-checkpoint", "model", "--lr-decay-style", "linear", "--num-rollout", "9"])
    (problem,) = caught.value.problems
    assert problem.where == "--rollout-batch-size"


def test_the_fix_of_batches_that_do_not_add_up_is_a_size_that_does():
    with pytest.raises(ConfigError) as caught:
        load([*BASE, "--n-samples-per-prompt", "3", "--global-batch-size", "5"])
    assert "--global-batch-size 4" in caught.value.problems[0].fix
