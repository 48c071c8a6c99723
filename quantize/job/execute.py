"""Runs a whole quantization job: convert, measure, plan, write, verify, publish. Native code runs in children."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from devices.errors import Cancelled, TesseraError
from quantize.child import HERE, Executor, answer_of, reused_workers, run_task
from quantize.convert.folder import ConversionResult, ConvertRequest, Prepared
from quantize.errors import BudgetTooSmall, InvalidOption
from quantize.files.gguf_split import GgufModel, read_gguf_model
from quantize.files.measurement_cache import bounded
from quantize.files.measurement_folder import file_sha256, hash_is_cached, model_sha256
from quantize.files.output_file import Output
from quantize.files.provenance import provenance_bytes
from quantize.ggml_types import ANCHORS, MEASURED
from quantize.gptq.exact import ExactTypes
from quantize.job.forecast import (
    JobShape,
    Spent,
    effort_of,
    forecast,
    job_shape,
    learn_rates,
    learned_rates,
    seconds_by_phase,
    spend,
    types_to_measure,
)
from quantize.job.gate import GateReport, Mix, cautions
from quantize.job.gate_run import (
    NOT_THE_SOURCE,
    GateEvaluator,
    ask_gate,
    nearly_exact,
    no_rival,
    stock_rival,
    verdict,
    verify_request,
)
from quantize.job.phases import JobPhases
from quantize.job.plan_file import (
    applied,
    arithmetic_for,
    check_claim,
    check_source,
    check_texts,
)
from quantize.job.publish import FileSoFar, Writing, packed, publish
from quantize.job.question import exact_types_of, has_choice, measured_cache, plan_input
from quantize.job.report import missed_grids
from quantize.job.request import QuantizeReport, QuantizeRequest, Shipped, Stopped
from quantize.job.round_plan import types_to_round
from quantize.job.source import (
    CachedMeasurement,
    Identity,
    QuantSource,
    cached_measurement,
    check_precision,
    check_target,
    check_unchanged,
    file_type,
    header_bytes,
    is_whole,
    mostly,
    remember,
    smoothed,
    smooths,
    watched,
    whole_spec,
)
from quantize.job.write_model import WriteRequest
from quantize.measure.kv_cache import KvCacheLoss
from quantize.measure.run import measure, measure_inputs, never_measured
from quantize.measure.verify import verify
from quantize.measurements import (
    CancelCheck,
    Measured,
    MeasureRequest,
    OnProgress,
    Progress,
    RoundRequest,
)
from quantize.native.reference import LoadCheck
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.plan.plan import PlanInput, given_plan, make_plan
from quantize.tensor_rules import allows_quantization
from quantize.types import FileReport, ModelSpec, QuantPlan, Rounding

# Files of the output's size that are on the disk at the same time: the first version, the final one and the preset.
_FILES_AT_ONCE = 3
_EXPECTED = "nothing was measured yet: the plan and its figures are estimates, and will change"


def quantize(
    request: QuantizeRequest,
    on_progress: OnProgress,
    cancelled: CancelCheck,
    executor: Executor = HERE,
    judge: GateEvaluator | None = None,
    keeps: CancelCheck = lambda: False,
    on_publish: Callable[[], None] = lambda: None,
) -> QuantizeReport:
    """Run the whole job; blocks. The output gets its final name only when it is complete and verified.

    `judge` runs the tasks of the request's quality gate. If the gate rejects, the report says so and no file is
    left. If the job is cancelled while `keeps()` is true, it ends with its best file so far, if it has one.
    `on_publish` is called when the file is finished and gets its final name; from then on the job is not cancelled.

    Raises: BudgetTooSmall, InvalidOption, BadFile and its subclasses, BadWeights, UnsupportedModel: invalid request
    or source. DiskFull, NotWritable, SourceChanged, ChildDied: problems of the environment. Cancelled. In all these
    cases no file is left.
    """
    if request.gate is not None and judge is None and not request.plan_only:
        raise InvalidOption("--gate", "this program cannot run tasks on a model")
    check_target(request.source, request.out)
    writes = not request.plan_only
    output = Output(request.out, overwrite=request.overwrite, writes=writes)
    job = _Job(request, output, on_progress, cancelled, executor, judge, on_publish)
    with (
        bounded(request.cache_dir, writes=writes),
        output,
        reused_workers(),
        watched(request.source) as job.identity,
    ):
        try:
            return job.run()
        except Cancelled:
            if job.so_far is None or not keeps():
                raise
            on_publish()
            return job.so_far.publish(request, output, job.identity)
        except TesseraError as error:
            output.name_source(error, request.source)
            raise


class _Job:
    """State of one job."""

    def __init__(
        self,
        request: QuantizeRequest,
        output: Output,
        on_progress: OnProgress,
        cancelled: CancelCheck,
        executor: Executor,
        judge: GateEvaluator | None,
        on_publish: Callable[[], None],
    ) -> None:
        self.request = request
        self.on_publish = on_publish
        self.output = output
        self.phases = JobPhases(on_progress, cancelled)
        self.on_progress, self.cancelled = self.phases.on_progress, cancelled
        self.executor, self.judge = executor, judge
        self.writing = Writing(self.phases, executor, self._measure_request)
        self.rates = learned_rates(request.cache_dir)
        self.spent: Spent | None = None
        self.so_far: FileSoFar | None = None
        self.asked_all = self.fresh = False
        self.source_sha256 = self.text_sha256 = ""
        self.kv_damage: tuple[KvCacheLoss, ...] = ()
        self.basis, self.scale_header_bytes = QuantSource(), 0
        self.cached: CachedMeasurement = (None, 0)
        self.warnings: list[str] = []
        self.formats: dict[str, int] = {}
        self.identity: Identity = ()
        self.qtypes: tuple[str, ...] = ()
        self.exact = ExactTypes(types={})
        self.arithmetic = arithmetic_for(request)
        self._take(request)

    def _take(self, request: QuantizeRequest) -> None:
        """Set the fields that follow from the request; a time budget may change it once the model is known."""
        self.request = request
        mix = request.goal.kind == "mix"
        self.rounding: Rounding = request.rounding or (Rounding.STOCK if mix else effort_of(request.tier).rounding)
        self.verifies = not mix if request.verify is None else request.verify
        if request.tier == "instant" and self.rounding != Rounding.STOCK:
            raise InvalidOption("--tier", f"tier instant measures nothing, which rounding {self.rounding} needs")

    def _spend(self, spec: ModelSpec, source_bytes: int) -> None:
        """Choose the effort level for the request's time budget."""
        request = self.request
        if request.time_s is None:
            return
        self.spent = spend(self._shape(spec, source_bytes), request.time_s, self.rates)
        effort = self.spent.effort
        self._take(
            msgspec.structs.replace(
                request,
                tier=effort.tier,
                rounding=effort.rounding,
                max_tokens=effort.max_tokens or request.max_tokens,
                probe_tokens=effort.probe_tokens or request.probe_tokens,
            )
        )

    def _shape(self, spec: ModelSpec, source_bytes: int) -> JobShape:
        measured = is_whole(self.cached, even=smooths(self.request, self.rounding))
        return job_shape(self.request, self.rounding, spec, source_bytes, verifies=self.verifies, measured=measured)

    def run(self) -> QuantizeReport:
        request = self.request
        if request.plan_only and request.source.is_dir():
            return self._previewed_folder()
        source = self._converted() if request.source.is_dir() else request.source
        with self.phases.phase("read"):
            model = read_gguf_model(source)
            spec = whole_spec(model)
            self.warnings += check_precision(spec, force=self.request.force)
        self._spend(spec, model.file_bytes)
        self.qtypes = types_to_measure(request, spec)
        if self.request.tier != "instant" and request.plan is None:
            self.cached = cached_measurement(
                self._measure_request(source), even=smooths(self.request, self.rounding)
            )
        self.on_progress.expect(seconds_by_phase(self._shape(spec, model.file_bytes), self.rates))
        # A preview must not read a model of many gigabytes only to find that nothing was measured.
        unknown = request.plan_only and not (request.plan or hash_is_cached(source, request.cache_dir))
        with self.phases.phase("hash"):
            watch = self.phases.counted("hash", model.file_bytes)
            source_hash = "" if unknown else model_sha256(source, request.cache_dir, watch)
            self.source_sha256 = source_hash
            self.text_sha256 = file_sha256(request.calibration) if self.rounding != Rounding.STOCK else ""
        if request.plan is not None:
            check_source(request.plan, spec, source_hash)
            check_texts(request.plan, request.calibration, request.imatrix)
        with self.phases.phase("read"):
            self.exact = exact_types_of(self.request, source, self.on_progress, self.cancelled)
            if not request.plan_only:
                run_task("load", LoadCheck(path=source), self.on_progress, self.cancelled)
        if self.request.tier != "instant" and request.plan is None:  # other plans are made immediately
            head = header_bytes(model, spec)
            unmeasured = plan_input(
                self.request, Rounding.STOCK, spec, head, None, self.request.imatrix, self.exact
            )
            self._require_possible(unmeasured)
            self._write_first(source, model, unmeasured)
        self.basis = self._basis(source, model.file_bytes)
        self.scale_header_bytes = self.basis.scale_header_bytes(model, spec)
        measured = None if request.plan else self._measured(source)
        imatrix_path = request.imatrix or (measured.imatrix if measured else None)
        imatrix = self._inputs(self.basis.path) if request.plan else imatrix_path
        self._measure_cache(source)
        head = header_bytes(model, spec) + self.scale_header_bytes
        question = plan_input(self.request, self.rounding, spec, head, measured, imatrix, self.exact)
        report = self._planned(question, source_hash, model.file_bytes)
        if request.plan_only:
            return report
        rounded = types_to_round(report.plan, self.rounding, measured, request.plan)
        return self._create(source, question, imatrix, rounded, report)

    def _require_possible(self, unmeasured: PlanInput) -> None:
        """Before the long measuring, refuse requests that no measurement can make possible, such as too few bytes.

        Raises: BudgetTooSmall, InvalidOption.
        """
        measurable = [qtype.name for qtype in (*MEASURED, *ANCHORS)]
        tensors = (tensor for tensor in unmeasured.model.tensors if allows_quantization(tensor))
        lossless = {tensor.name: dict.fromkeys(measurable, 0.0) for tensor in tensors}
        make_plan(msgspec.structs.replace(unmeasured, damage=lossless, with_stock=False), self.request.goal)

    def _write_first(self, source: Path, model: GgufModel, question: PlanInput) -> None:
        """Write the file of tier instant, which the job can end with at any time; skipped without the disk space.

        With a gate there is no such file, because the gate must decide first.
        """
        request = self.request
        if request.plan_only or request.gate is not None:
            return
        try:
            plan = make_plan(question, request.goal)
        except (BudgetTooSmall, InvalidOption):  # it needs types that are planned only with measurements
            return
        copied = model.file_bytes if smooths(request, self.rounding) else 0
        if not self.output.has_free(_FILES_AT_ONCE * plan.file_bytes + copied):
            return

        def report(progress: Progress) -> None:
            self.on_progress(msgspec.structs.replace(progress, phase="first"))

        with self.phases.phase("first"):
            lossless = types_to_round(plan, Rounding.STOCK, None, None)
            exact = RoundRequest(
                measure=self._measure_request(source), types=lossless, rounding=Rounding.STOCK, exact=True
            )
            task = WriteRequest(
                source=source,
                out=self.output.partial("first"),
                types=plan.types,
                file_type=file_type(plan.goal.mix) if plan.goal.mix in MIXES else mostly(source, plan.types),
                imatrix=request.imatrix,
                packed=packed(exact, report, self.cancelled, self.executor) if lossless else {},
                threads=request.threads,
            )
            run_task("write", task, report, self.cancelled)
        self._keep(task, self._report(plan, question, self.source_sha256, model.file_bytes), "unmeasured")

    def _keep(self, written: WriteRequest, report: QuantizeReport, stopped: Stopped) -> None:
        """Make a complete file the job's result if it is stopped; remove the previous one."""
        before, unmeasured = self.so_far, stopped == "unmeasured"
        report = msgspec.structs.replace(
            report,
            rounding=Rounding.STOCK if unmeasured else self.rounding,
            smoothed=0 if unmeasured else self.basis.even.changed,
            stopped=stopped,
            effort="",
            more="",
            warnings=tuple(self.warnings),
        )
        self.so_far = FileSoFar(written.out, written.types, report)
        self.on_progress.usable = stopped
        if before is not None:
            before.path.unlink(missing_ok=True)

    def _require_disk(self, needed_bytes: int) -> None:
        """Check the free space; deletes the file so far if that frees enough. Raises: DiskFull."""
        if self.so_far is not None and not self.output.has_free(needed_bytes):
            self.so_far.path.unlink(missing_ok=True)
            self.so_far, self.on_progress.usable = None, ""
        self.output.require_disk(needed_bytes)

    def _planned(self, question: PlanInput, source_hash: str, source_bytes: int) -> QuantizeReport:
        """A report with the plan and its forecast; the results are still empty."""
        with self.phases.phase("plan"):
            plan_file = self.request.plan
            if plan_file is None:
                plan = make_plan(question, self.request.goal)
                self.warnings += missed_grids(question.exact, plan) if plan.goal.kind == "mix" else ()
            else:
                plan = applied(plan_file, given_plan(question, plan_file.goal, plan_file.types))
        return self._report(plan, question, source_hash, source_bytes)

    def _report(self, plan: QuantPlan, question: PlanInput, source_hash: str, source_bytes: int) -> QuantizeReport:
        expected = forecast(self._shape(question.model, source_bytes), plan, self.rates)
        return QuantizeReport(
            source=str(self.request.source),
            source_sha256=source_hash,
            source_bytes=source_bytes,
            out=None,
            file_bytes=None,
            shipped="nothing",
            plan=plan,
            rounding=self.rounding,
            forecast=expected,
            seconds=self.phases.seconds,
            effort=self.spent.effort.name if self.spent else "",
            more=self.spent.more if self.spent else "",
            gpu_layers=self.request.gpu_layers,
            kv_damage={f"{d.side} {d.qtype}": dict(zip(d.contexts, d.kld, strict=True)) for d in self.kv_damage},
            formats=self.formats,
            warnings=tuple(self.warnings),
            tool="tessera",
        )

    def _previewed_folder(self) -> QuantizeReport:
        """Plan a folder that was never converted."""
        task = ConvertRequest(folder=self.request.source, out=self.output.path)
        with self.phases.phase("prepare"):
            prepared = answer_of(Prepared, "prepare", task, self.on_progress, self.cancelled)
        self.warnings += (*prepared.notes, _EXPECTED)
        self.formats = prepared.formats
        self._spend(prepared.spec, prepared.file_bytes)
        head = prepared.header_bytes + provenance_bytes()
        with self.phases.phase("read"):
            self.exact = exact_types_of(self.request, self.request.source, self.on_progress, self.cancelled)
        question = plan_input(self.request, self.rounding, prepared.spec, head, None, None, self.exact)
        return self._planned(question, "", prepared.file_bytes)

    def _create(
        self,
        source: Path,
        question: PlanInput,
        imatrix: Path | None,
        rounded: dict[str, str],
        report: QuantizeReport,
    ) -> QuantizeReport:
        plan, basis = report.plan, self.basis.path
        rival = stock_rival(question, plan, self.rounding) if self.verifies else None
        self._require_disk(plan.file_bytes + (rival.file_bytes if rival else 0))
        ours = WriteRequest(
            source=basis,
            out=self.output.partial("ours"),
            types=plan.types,
            file_type=file_type(plan.goal.mix) if plan.goal.mix in MIXES else mostly(basis, plan.types),
            imatrix=imatrix,
            packed=self.writing.packed(basis, rounded, imatrix, self.rounding, exact=plan.exact),
            threads=self.request.threads,
        )
        if rival is None and self.verifies and plan.best_stock is None:
            self.warnings.append(no_rival(question, plan))
        written = self.writing.written(ours)
        if self.request.plan is None and self.request.gate is None:
            self._keep(ours, report, "uncompared")
        stock = None
        if rival:
            out, ftype = self.output.partial("stock"), file_type(rival.name)
            task = msgspec.structs.replace(ours, out=out, types=rival.types, file_type=ftype, packed={})
            plain = self.basis.source_imatrix(imatrix, self.output)
            stock = self.writing.written(msgspec.structs.replace(task, source=source, imatrix=plain))
        shipped: Shipped = "ours"
        gate: GateReport | None = None
        reports: tuple[FileReport, ...] = ()
        own: FileReport | None = None
        if self.verifies:
            reports = self._verified(source, written, stock, self.request.held_out)
            if self.request.own_text:
                own = self._verified(source, written, stock, self.request.own_text)[0]
            shipped, warnings = verdict(reports)
            self.warnings += warnings
            if self.request.plan is not None:
                check_claim(self.request.plan, reports[0].kld_mean)
        if self.request.gate is not None:
            candidates: dict[Mix, Path] = {"ours": written} if shipped == "ours" else {}
            gate = self._gated(question, ours, candidates | ({"stock": stock} if stock else {}))
            shipped = gate.passed or "nothing"
        chosen, types = written, plan.types
        if shipped == "stock" and rival is not None and stock is not None:
            chosen, types = stock, rival.types
        shipped_any = shipped != "nothing"
        report = msgspec.structs.replace(
            report,
            out=str(self.output.path) if shipped_any else None,
            file_bytes=chosen.stat().st_size if shipped_any else None,
            shipped=shipped,
            smoothed=self.basis.even.changed if shipped == "ours" else 0,
            gate=gate,
            ours=reports[0] if reports else None,
            stock_mix=rival.name if rival else None,
            stock=reports[1] if len(reports) > 1 else None,
            own=own,
            warnings=tuple(self.warnings),
        )
        if not shipped_any:
            check_unchanged(self.request.source, self.identity)
            return report
        self.on_publish()
        report = publish(self.request, self.output, report, chosen, types, rounded.keys(), self.identity)
        fresh = ("hash", "measure", "round") if self.fresh else ()
        whole = {"convert", "first", "write", "verify", *fresh, *(["gate"] if self.asked_all else [])}
        learn_rates(self.request.cache_dir, self._shape(question.model, report.source_bytes), report, whole)
        return report

    def _converted(self) -> Path:
        out = self.output.partial("source")
        task = ConvertRequest(folder=self.request.source, out=out)
        with self.phases.phase("convert"):
            done = answer_of(ConversionResult, "convert", task, self.on_progress, self.cancelled)
        self.warnings += done.notes
        self.formats = done.formats
        return out

    def _basis(self, source: Path, source_bytes: int) -> QuantSource:
        if self.request.plan_only or not smooths(self.request, self.rounding):
            return QuantSource(source)
        with self.phases.phase("measure"):
            task = self._measure_request(source)
            return smoothed(task, self.exact.types, self.output, source_bytes, self.on_progress, self.cancelled)

    def _measured(self, source: Path) -> Measured | None:
        if self.request.tier == "instant":
            return None
        if self.request.plan_only:
            measured, self.scale_header_bytes = self.cached
            self.warnings += () if measured else (_EXPECTED,)
            return measured
        with self.phases.phase("measure"):
            copy = self._measure_request(self.basis.path)
            self.fresh = never_measured(copy)
            measured = measure(copy, self.on_progress, self.cancelled, self.executor)
            if self.basis.even.changed:
                remember(self._measure_request(source), measured, self.scale_header_bytes)
            return measured

    def _measure_cache(self, source: Path) -> None:
        """Measure the KL divergence of each KV cache type for this model, if there is a choice."""
        if has_choice(self.request):
            with self.phases.phase("measure"):
                task = self._measure_request(source)
                self.request, self.kv_damage = measured_cache(self.request, task, self.on_progress, self.cancelled)

    def _measure_request(self, source: Path) -> MeasureRequest:
        return MeasureRequest(
            source=source,
            # No other program changes Tessera's own copy, so it needs no hash.
            source_sha256="" if self.basis.even.changed and source == self.basis.path else self.source_sha256,
            calibration=self.request.calibration,
            calibration_sha256=self.text_sha256,
            cache_dir=self.request.cache_dir,
            tier="max" if self.request.tier == "max" else "balanced",
            threads=self.request.threads,
            gpu_layers=self.request.gpu_layers,
            arithmetic=self.arithmetic,
            max_tokens=self.request.max_tokens,
            probe_tokens=self.request.probe_tokens,
            qtypes=self.qtypes,
        )

    def _inputs(self, source: Path) -> Path | None:
        """The importance matrix for a given plan; also stores the Hessians in the cache."""
        if self.rounding == Rounding.STOCK and self.request.tier == "instant":
            return self.request.imatrix
        with self.phases.phase("measure"):
            task = self._measure_request(source)
            return self.request.imatrix or measure_inputs(task, self.on_progress, self.cancelled)

    def _verified(self, source: Path, result: Path, stock: Path | None, text: Path) -> tuple[FileReport, ...]:
        with self.phases.phase("verify"):
            task = verify_request(self.request, source, result, stock, text)
            return verify(task, self.on_progress, self.cancelled)

    def _gated(self, question: PlanInput, ours: WriteRequest, candidates: dict[Mix, Path]) -> GateReport:
        """Test the reference and then the candidates in order, until one passes."""
        assert self.judge is not None
        assert self.request.gate is not None
        source, digest, note = ours.source, self.source_sha256, ""
        if not self.judge.fits(source):
            task, num_bytes = nearly_exact(question, ours, self.output.partial("reference"))
            self.output.require_disk(num_bytes)
            source, note = self.writing.written(task), NOT_THE_SOURCE
            digest = file_sha256(source)
        with self.phases.phase("gate"):
            gate, self.asked_all = ask_gate(
                self.judge, self.request.gate, (source, digest, note), candidates, self.on_progress, self.cancelled
            )
        self.warnings += cautions(gate)
        return gate
