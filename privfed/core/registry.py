"""The module and class of every built-in part, by kind and name, and the contract of each kind.

To add a part, write its file and add a line here.
"""

from __future__ import annotations

_SCHEDULES = {
    "constant": "privfed.core.schedules:Constant",
    "staircase": "privfed.core.schedules:Staircase",
    "warmup": "privfed.core.schedules:WarmUp",
    "cosine": "privfed.core.schedules:Cosine",
}

OTHER_PARTS = {
    "source": {
        "table": "csv parquet pandas",
        "huggingface": "hf datasets",
        "folders": "imagefolder",
    },
    "partition": {"dirichlet": "noniid lda labelskew", "shards": "pathological", "iid": "uniform"},
    "model": {"logistic": "linear logreg logisticregression softmax", "lstm": "rnn gru"},
    "loss": {
        "cross_entropy": "ce nll nllloss crossentropyloss",
        "binary_cross_entropy": "bce bceloss bcewithlogitsloss",
        "squared_error": "mse mseloss l2",
    },
    "objective": {"sgd": "fedavg fedsgd", "qfedavg": "qffl", "afl": "agnostic"},
    "optimizer": {
        "fedavg": "sgd average mean",
        "fedavgm": "momentum sgdm",
        "fedadam": "adam fedopt",
        "fedadagrad": "adagrad",
        "fedyogi": "yogi",
    },
    "sampler": {
        "fixed_size": "uniform random",
        "poisson": "bernoulli",
        "asynchronous": "async fedbuff buffered papaya",
    },
    "mechanism": {
        "gaussian": "gauss central dp dpfedavg",
        "banded": "dpftrl matrixfactorization bandmf",
        "local_gaussian": "local ldp",
        "discrete_gaussian": "ddgauss distributeddgauss",
        "skellam": "distributedskellam",
    },
    "client_mechanism": {"dp_sgd": "opacus"},
    "rule": {
        "mean": "fedavg average avg",
        "median": "coordinatemedian coordinatewisemedian comed",
        "trimmed_mean": "trim trimmed",
        "geometric_median": "rfa geomed",
        "centered_clipping": "cclip",
        "norm_bound": "normclipping normthresholding",
        "sign_majority": "signsgd",
    },
    "protocol": {"masks": "secagg secaggplus bonawitz"},
    "compression": {
        "qsgd": "quantize quantization",
        "random_mask": "randomk",
        "sign": "signsgd",
        "soft_labels": "distillation fedmd feddf pate votes",
    },
    "attack": {
        "alie": "lie littleisenough",
        "ipm": "innerproduct",
        "gaussian": "noise",
        "scaling": "modelreplacement",
        "backdoor": "badnets",
    },
}
"""The names that other libraries give a part, by its kind and name; letters and digits only."""

BUILT_IN: dict[str, dict[str, str]] = {
    "source": {
        "digits": "privfed.data.sources.digits:Digits",
        "synthetic": "privfed.data.sources.synthetic:Synthetic",
        "idx": "privfed.data.sources.idx:Idx",
        "table": "privfed.data.sources.table:Table",
        "leaf": "privfed.data.sources.leaf:Leaf",
        "text": "privfed.data.sources.text:Text",
        "huggingface": "privfed.data.sources.hugging_face:HuggingFace",
        "tff": "privfed.data.sources.tff:Tff",
        "folders": "privfed.data.sources.folders:Folders",
    },
    "partition": {
        "iid": "privfed.data.partitions.basic:Iid",
        "dirichlet": "privfed.data.partitions.label_skew:Dirichlet",
        "shards": "privfed.data.partitions.label_skew:Shards",
        "long_tail": "privfed.data.partitions.label_skew:LongTail",
        "pachinko": "privfed.data.partitions.label_skew:Pachinko",
        "natural": "privfed.data.partitions.basic:Natural",
        "shuffled": "privfed.data.partitions.basic:Shuffled",
    },
    "shift": {
        "none": "privfed.data.partitions.shift:NoShift",
        "covariate": "privfed.data.partitions.shift:Covariate",
        "concept": "privfed.data.partitions.shift:Concept",
    },
    "model": {
        "logistic": "privfed.models.recipes:Logistic",
        "mlp": "privfed.models.recipes:Mlp",
        "cnn": "privfed.models.networks:Cnn",
        "lstm": "privfed.models.networks:Lstm",
    },
    "loss": {
        "cross_entropy": "privfed.models.losses.cross_entropy:CrossEntropy",
        "binary_cross_entropy": "privfed.models.losses.cross_entropy:BinaryCrossEntropy",
        "multi_label": "privfed.models.losses.cross_entropy:MultiLabel",
        "squared_error": "privfed.models.losses.squared_error:SquaredError",
    },
    "objective": {
        "sgd": "privfed.client.objective:Sgd",
        "fedprox": "privfed.client.objectives.fedprox:FedProx",
        "fedprox_adaptive": "privfed.client.objectives.fedprox:AdaptiveFedProx",
        "fedfor": "privfed.client.objectives.fedfor:FedFor",
        "fedlc": "privfed.client.objectives.skewed_labels:FedLc",
        "fedrs": "privfed.client.objectives.skewed_labels:FedRs",
        "moon": "privfed.client.objectives.moon:Moon",
        "fednova": "privfed.client.objectives.fednova:FedNova",
        "feddane": "privfed.client.objectives.feddane:FedDane",
        "mime": "privfed.client.objectives.mime:Mime",
        "mimelite": "privfed.client.objectives.mime:MimeLite",
        "scaffold": "privfed.client.objectives.scaffold:Scaffold",
        "feddyn": "privfed.client.objectives.feddyn:FedDyn",
        "fedcurv": "privfed.client.objectives.fedcurv:FedCurv",
        "fedlin": "privfed.client.objectives.fedlin:FedLin",
        "fedsplit": "privfed.client.objectives.fedsplit:FedSplit",
        "adaalter": "privfed.client.objectives.adaalter:AdaAlter",
        "fedpa": "privfed.client.objectives.fedpa:FedPa",
        "qfedavg": "privfed.client.objectives.qfedavg:QFedAvg",
        "afl": "privfed.client.objectives.afl:Afl",
        "group_clip": "privfed.client.objectives.group_clip:GroupClip",
        "worker_momentum": "privfed.client.objectives.worker_momentum:WorkerMomentum",
        "ditto": "privfed.client.objectives.personal.next_to_global:Ditto",
        "apfl": "privfed.client.objectives.personal.next_to_global:Apfl",
        "ifca": "privfed.client.objectives.personal.ifca:Ifca",
        "per_fedavg": "privfed.client.objectives.personal.per_fedavg:PerFedAvg",
        "per_fedavg_hf": "privfed.client.objectives.personal.per_fedavg:HessianFree",
    },
    "compression": {
        "none": "privfed.client.compression.compression:NoCompression",
        "random_mask": "privfed.client.compression.linear:RandomMask",
        "low_rank": "privfed.client.compression.low_rank:LowRank",
        "count_sketch": "privfed.client.compression.count_sketch:CountSketch",
        "power_sgd": "privfed.client.compression.power_sgd:PowerSgd",
        "qsgd": "privfed.client.compression.qsgd:Qsgd",
        "top_k": "privfed.client.compression.top_k:TopK",
        "sign": "privfed.client.compression.qsgd:Sign",
        "soft_labels": "privfed.client.compression.soft_labels:SoftLabels",
    },
    "client_mechanism": {
        "none": "privfed.client.dp_sgd:NoClientPrivacy",
        "dp_sgd": "privfed.client.dp_sgd:DpSgd",
    },
    "client_schedule": _SCHEDULES,
    "optimizer": {
        "fedavg": "privfed.server.fedopt:FedAvg",
        "fedavgm": "privfed.server.fedopt:FedAvgM",
        "fedadagrad": "privfed.server.fedopt:FedAdagrad",
        "fedadam": "privfed.server.fedopt:FedAdam",
        "fedyogi": "privfed.server.fedopt:FedYogi",
        "lookahead": "privfed.server.lookahead:Lookahead",
        "slowmo": "privfed.server.lookahead:SlowMo",
    },
    "server_schedule": _SCHEDULES,
    "sampler": {
        "poisson": "privfed.sampling.samplers:Poisson",
        "truncated_poisson": "privfed.sampling.samplers:CappedPoisson",
        "fixed_size": "privfed.sampling.samplers:FixedSize",
        "full": "privfed.sampling.samplers:Full",
        "cyclic": "privfed.sampling.samplers:Cyclic",
        "asynchronous": "privfed.sampling.asynchronous:Asynchronous",
        "allocation": "privfed.sampling.allocation:Allocation",
        "by_size": "privfed.sampling.samplers:BySize",
    },
    "availability": {
        "always": "privfed.sampling.availability:Always",
        "daily": "privfed.sampling.availability:Daily",
        "groups": "privfed.sampling.availability:Groups",
    },
    "mechanism": {
        "none": "privfed.privacy.mechanisms.none:NoPrivacy",
        "gaussian": "privfed.privacy.mechanisms.central_gaussian:CentralGaussian",
        "banded": "privfed.privacy.mechanisms.banded:Banded",
        "blt": "privfed.privacy.mechanisms.buffered:Buffered",
        "skellam": "privfed.privacy.mechanisms.distributed:SkellamNoise",
        "discrete_gaussian": "privfed.privacy.mechanisms.distributed:DiscreteGaussianNoise",
        "local_gaussian": "privfed.privacy.mechanisms.local_gaussian:LocalGaussian",
        "pairwise_gaussian": "privfed.privacy.mechanisms.pairwise_gaussian:PairwiseGaussian",
    },
    "rule": {
        "mean": "defenses.by_sums.mean:Mean",
        "norm_bound": "defenses.by_sums.norm_bound:NormBound",
        "centered_clipping": "defenses.by_sums.centered_clipping:CenteredClipping",
        "geometric_median": "defenses.by_sums.geometric_median:GeometricMedian",
        "sign_majority": "defenses.by_sums.sign_majority:SignMajority",
        "trimmed_mean": "defenses.on_rows.trimmed_mean:TrimmedMean",
        "median": "defenses.on_rows.median:Median",
        "mean_around_median": "defenses.on_rows.mean_around_median:MeanAroundMedian",
        "krum": "defenses.on_rows.krum:Krum",
        "multi_krum": "defenses.on_rows.krum:MultiKrum",
        "bulyan": "defenses.on_rows.bulyan:Bulyan",
        "mda": "defenses.on_rows.mda:MinimumDiameter",
        "dnc": "defenses.on_rows.dnc:DivideAndConquer",
        "caf": "defenses.on_rows.caf:CovarianceFilter",
        "smea": "defenses.on_rows.smea:SmallestEigenvalue",
        "monna": "defenses.on_rows.monna:TrustedNeighbours",
        "lasa": "defenses.on_rows.lasa:LayerAdaptive",
        "fedma": "defenses.on_rows.matched_mean:MatchedMean",
        "fltrust": "defenses.on_rows.fltrust:FlTrust",
        "foolsgold": "defenses.on_rows.foolsgold:FoolsGold",
        "flame": "defenses.on_rows.flame:Flame",
        "rflbat": "defenses.on_rows.rflbat:Rflbat",
        "fldetector": "defenses.on_rows.fldetector:FlDetector",
    },
    "attack": {
        "none": "attacks.types:NoAttack",
        "label_flip": "attacks.poisoning.label_flip:LabelFlip",
        "feature_noise": "attacks.poisoning.feature_noise:FeatureNoise",
        "backdoor": "attacks.poisoning.backdoor:Backdoor",
        "edge_case": "attacks.poisoning.backdoor:EdgeCase",
        "tail": "attacks.poisoning.tail:Tail",
        "semantic": "attacks.poisoning.semantic:Semantic",
        "clean_label": "attacks.poisoning.clean_label:CleanLabel",
        "distributed_backdoor": "attacks.poisoning.distributed_backdoor:DistributedBackdoor",
        "constrain_and_scale": "attacks.poisoning.constrain_and_scale:ConstrainAndScale",
        "pgd_replacement": "attacks.poisoning.pgd_replacement:PgdReplacement",
        "neurotoxin": "attacks.poisoning.neurotoxin:Neurotoxin",
        "sign_flip": "attacks.updates.simple:SignFlip",
        "gaussian": "attacks.updates.simple:GaussianNoise",
        "scaling": "attacks.updates.simple:Scaling",
        "free_rider": "attacks.updates.simple:FreeRider",
        "alie": "attacks.updates.statistics:Alie",
        "ipm": "attacks.updates.statistics:InnerProduct",
        "min_max": "attacks.updates.min_max:MinMax",
        "min_sum": "attacks.updates.min_max:MinSum",
        "mimic": "attacks.updates.mimic:Mimic",
        "fang": "attacks.updates.fang:Fang",
        "adaptive": "attacks.updates.adaptive:Adaptive",
    },
    "before": {
        "nnm": "defenses.before.nnm:NearestNeighbourMixing",
        "bucketing": "defenses.before.bucketing:Bucketing",
        "clipping": "defenses.before.clipping:Clipping",
        "arc": "defenses.before.arc:AdaptiveClipping",
    },
    "protocol": {
        "none": "privfed.secure.plain_sum:PlainSum",
        "masks": "privfed.secure.masked.protocol:MaskedSums",
        "committee": "privfed.secure.committee.protocol:CommitteeSums",
        "regions": "privfed.secure.regional.protocol:RegionalSums",
        "bfv": "privfed.secure.homomorphic.protocol:Bfv",
        "ckks": "privfed.secure.homomorphic.protocol:Ckks",
    },
    "measure": {
        "accuracy": "privfed.metrics.accuracy:Accuracy",
        "loss": "privfed.metrics.mean_loss:MeanLoss",
        "auc": "privfed.metrics.auc:AreaUnderCurve",
        "calibration": "privfed.metrics.calibration:Calibration",
        "recall_at_k": "privfed.metrics.accuracy:RecallAtK",
        "mean_absolute_error": "privfed.metrics.mean_loss:MeanAbsoluteError",
    },
    "watcher": {
        "csv": "privfed.run.watch.files:Csv",
        "tensorboard": "privfed.run.watch.files:TensorBoard",
        "mlflow": "privfed.run.watch.files:Mlflow",
        "wandb": "privfed.run.watch.files:WeightsAndBiases",
    },
}

LISTS = {
    "before": "aggregation.before",
    "measure": "evaluation.measures",
    "watcher": "run.watch",
}
"""The key of a run file that lists parts of a kind, for each kind of which a run has several."""

CLIENT_MODELS = "compression.models"
"""The key of a run file that lists further models, of clients themselves."""

GIVEN: dict[str, dict[str, str]] = {
    "source": {
        "given_table": "privfed.data.sources.table:GivenTable",
        "given_arrays": "privfed.data.sources.table:GivenArrays",
        "described_table": "privfed.analytics.described_table:DescribedTable",
        "survival_table": "privfed.analytics.survival.table:SurvivalTable",
        "regression_table": "privfed.analytics.regression.table:RegressionTable",
        "score_table": "privfed.analytics.regression.score_table:ScoreTable",
    },
    "model": {
        "given_module": "privfed.models.given_module:GivenModule",
        "counts": "privfed.analytics.count_model:CountModel",
        "scores": "privfed.analytics.regression.score_model:ScoreModel",
    },
    "optimizer": {"newton": "privfed.analytics.regression.score_model:Newton"},
    "loss": {"added": "privfed.analytics.count_model:Added"},
}
"""Parts that wrap objects passed in Python, and parts with which statistics are released. The
resolved configuration of such a run names them; users do not write them into a run file."""

CONTRACTS = {
    "source": "privfed.data.source:Source",
    "partition": "privfed.data.partitions.basic:Partition",
    "shift": "privfed.data.partitions.shift:Shift",
    "loss": "privfed.models.loss:Loss",
    "objective": "privfed.client.objective:Objective",
    "compression": "privfed.client.compression.compression:Compression",
    "model": "privfed.models.recipes:Model",
    "optimizer": "privfed.server.optimizer:ServerOptimizer",
    "client_schedule": "privfed.core.schedules:Schedule",
    "server_schedule": "privfed.core.schedules:Schedule",
    "sampler": "privfed.sampling.cohort:Sampler",
    "mechanism": "privfed.privacy.mechanism:Mechanism",
    "client_mechanism": "privfed.client.dp_sgd:ClientMechanism",
    "availability": "privfed.sampling.availability:Availability",
    "rule": "defenses.types:Rule",
    "before": "defenses.weighing:PreAggregator",
    "attack": "attacks.types:Attack",
    "protocol": "privfed.secure.summation:SumProtocol",
    "measure": "privfed.metrics.measure:Measure",
    "watcher": "privfed.run.watch.watcher:Watcher",
}
"""The contract of each kind. Refusals, plans and reports depend on its declarations, not on names.
"""

ADAPTERS = {
    "model": "privfed.models.recipes:UserNetwork",
    "watcher": "privfed.run.watch.watcher:OwnWatcher",
    "client_schedule": "privfed.core.schedules:UserSchedule",
    "server_schedule": "privfed.core.schedules:UserSchedule",
}
"""Kinds whose external parts may be plain functions, and the class that adapts a function."""

RETURNED = {
    "model": "a torch.nn.Module",
    "watcher": "an observer",
    "client_schedule": "a factor for each round",
    "server_schedule": "a factor for each round",
}
"""The return value of a function that `ADAPTERS` adapts, in words, by kind."""
