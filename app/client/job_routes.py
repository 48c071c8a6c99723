"""Long work: what starts a job, and what follows and steers it."""

from app.client.stream import Stream
from app.client.transport import OURS, Asking, path_part
from engine.api.converting import ConverterRemoved, ConverterState, ConvertRequest, OnnxConvertRequest
from engine.api.jobs import Job, Jobs
from engine.api.library import ImportRequest, PullRequest
from engine.api.measuring import BenchRequest, TuneRequest
from engine.api.quantizing import QuantizeOptions, QuantizeSketch


class JobRoutes(Asking):
    """Jobs of a server."""

    def jobs(self) -> tuple[Job, ...]:
        """Every job, newest first."""
        return self.get(f"{OURS}/jobs", Jobs).jobs

    def events_of(self, job: str) -> Stream[Job]:
        """One job's state now, then every change, to its end."""
        return self.stream(f"{OURS}/jobs/{path_part(job)}/events", Job)

    def job_events(self) -> Stream[Job]:
        """Each job's state now, then every change."""
        return self.stream(f"{OURS}/jobs/events", Job)

    def job_action(self, job: str, action: str) -> Job:
        """`pause`, `resume` or `cancel` a job."""
        return self.post(f"{OURS}/jobs/{path_part(job)}/{action}", Job)

    def pull(self, request: PullRequest) -> Job:
        """Start a download."""
        return self.post(f"{OURS}/models/pull", Job, request)

    def import_model(self, path: str) -> Job:
        """Start copying a file or folder into the library."""
        return self.post(f"{OURS}/models/import", Job, ImportRequest(path=path))

    def convert(self, request: ConvertRequest) -> Job:
        """Start making a GGUF file of a Hugging Face folder."""
        return self.post(f"{OURS}/models/convert", Job, request)

    def converter(self) -> ConverterState:
        """Whether llama.cpp's converter is here, and what getting it takes."""
        return self.get(f"{OURS}/converter", ConverterState)

    def fetch_converter(self) -> Job:
        """Start fetching llama.cpp's converter."""
        return self.post(f"{OURS}/converter", Job)

    def remove_converter(self) -> ConverterRemoved:
        """Remove llama.cpp's converter."""
        return self.delete(f"{OURS}/converter", ConverterRemoved)

    def convert_onnx(self, request: OnnxConvertRequest) -> Job:
        """Start making an ONNX folder of a GGUF model."""
        return self.post(f"{OURS}/onnx/convert", Job, request)

    def verify(self, model: str) -> Job:
        """Start hashing a model's files."""
        return self.post(f"{OURS}/models/{path_part(model)}/verify", Job)

    def bench(self, request: BenchRequest) -> Job:
        """Start measuring."""
        return self.post(f"{OURS}/bench", Job, request)

    def price_types(self) -> Job:
        """Start measuring what each quantization type costs."""
        return self.post(f"{OURS}/bench/types", Job)

    def autotune(self, request: TuneRequest) -> Job:
        """Start looking for the fastest settings, or those of most tokens per joule."""
        return self.post(f"{OURS}/autotune", Job, request)

    def quantize_plan(self, request: QuantizeOptions) -> QuantizeSketch:
        """The likely plan of a quantization; nothing is written."""
        return self.post(f"{OURS}/quantize/plan", QuantizeSketch, request)

    def quantize(self, request: QuantizeOptions) -> Job:
        """Start making a model fit."""
        return self.post(f"{OURS}/quantize", Job, request)
