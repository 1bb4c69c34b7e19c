"""What there is: every data set's name, shape, classes, where it lies on disk and where it comes from."""

import difflib
import json
import string
from dataclasses import dataclass
from pathlib import Path

from nsm.data.errors import DataError


@dataclass(frozen=True)
class Download:
    """One published file. An archive is unpacked into its folder and then removed."""

    file: str  # where it is saved, under the root
    urls: tuple[str, ...]
    md5: str
    sha256: str | None = None  # where it is known beforehand; otherwise it is recorded at the first download
    part: str = "both"  # which of "train" and "test" it holds
    unpack: str | None = None  # the folder an archive is unpacked into
    under: str = ""  # only members whose path begins with this


@dataclass(frozen=True)
class Entry:
    """One data set."""

    name: str
    about: str
    kind: str  # "embedded", "idx", "cifar", "nmnist" or "dvsgesture": how it is laid out
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    licence: str
    validation: str  # what is held out of the training part, in words
    held_out: int = 12  # one in so many of the training samples, the last ones
    folders: tuple[str, ...] = ()  # where it may lie under the root
    prefix: str = ""  # of its idx files
    transposed: bool = False  # its idx images are stored column by column
    downloads: tuple[Download, ...] = ()
    binary: bool = False  # ±1 inputs; otherwise [0, 1]


def _gz(folder: str, mirrors: tuple[str, ...], md5: tuple[str, ...], sha256: dict[str, str]) -> tuple[Download, ...]:
    names = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    return tuple(
        Download(
            f"{folder}/{name}",
            tuple(mirror + name for mirror in mirrors),
            one_md5,
            sha256.get(name),
            part="train" if name.startswith("train") else "test",
        )
        for name, one_md5 in zip(names, md5, strict=True)
    )


MNIST_SHA256: dict[str, str] = json.loads((Path(__file__).parent / "mnist.json").read_text())["made_from"]
_DIGITS = tuple(string.digits)
_LETTERS = tuple(string.ascii_lowercase)
_GESTURES = (
    "hand clapping", "right hand wave", "left hand wave", "right arm clockwise",
    "right arm counter-clockwise", "left arm clockwise", "left arm counter-clockwise", "arm roll",
    "air drums", "air guitar", "other gestures",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
    dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
    leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
    otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
    road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905 - a hundred lines otherwise
)
_FASHION = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_MENDELEY = "https://data.mendeley.com/public-files/datasets/468j46mzdv/files/"
_FIGSHARE = "https://figshare.com/ndownloader/files/"

ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            "mnist",
            "MNIST digits, one bit a pixel (grey ≥ 128), inside the package",
            "embedded",
            _DIGITS,
            (1, 28, 28),
            "CC BY-SA 3.0",
            "last 5,000 of 60,000",
            binary=True,
        ),
        Entry(
            "mnist-grey",
            "MNIST digits as published",
            "idx",
            _DIGITS,
            (1, 28, 28),
            "CC BY-SA 3.0",
            "last 5,000 of 60,000",
            folders=("mnist", "MNIST/raw"),
            downloads=_gz(
                "mnist",
                (
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                ),
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "9fb629c4189551a2d022fa330f9573f3",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                ),
                MNIST_SHA256,
            ),
        ),
        Entry(
            "fashion-mnist",
            "clothes in MNIST's format",
            "idx",
            _FASHION,
            (1, 28, 28),
            "MIT",
            "last 5,000 of 60,000",
            folders=("fashion-mnist", "FashionMNIST/raw"),
            downloads=_gz(
                "fashion-mnist",
                (
                    "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
                    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                ),
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
                {},
            ),
        ),
        Entry(
            "emnist-letters",
            "EMNIST letters, upper and lower case in 26 classes",
            "idx",
            _LETTERS,
            (1, 28, 28),
            "derived from NIST SD 19",
            "last 20,800 of 124,800",
            held_out=6,
            folders=("emnist", "emnist/gzip", "EMNIST/raw"),
            prefix="emnist-letters-",
            transposed=True,
            downloads=(
                Download(
                    "emnist/gzip.zip",
                    (
                        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
                    ),
                    "58c8d27c78d21e728a6bc7b3cc06412e",
                    unpack="emnist",
                    under="gzip/emnist-letters-",
                ),
            ),
        ),
        Entry(
            "emnist-letters-unofficial",
            "EMNIST letters, unofficial split of 117,248 / 10,400, upright",
            "idx",
            _LETTERS,
            (1, 28, 28),
            "derived from NIST SD 19",
            "last 9,770 of 117,248",
            folders=("emnist",),
            prefix="emnist-letters-unofficial-",
        ),
        Entry(
            "cifar10",
            "32×32 photographs of ten classes",
            "cifar",
            _CIFAR10,
            (3, 32, 32),
            "none given",
            "last 5,000 of 50,000",
            held_out=10,
            folders=("", "cifar10"),
            downloads=(
                Download(
                    "cifar10/cifar-10-binary.tar.gz",
                    (_TORONTO + "cifar-10-binary.tar.gz",),
                    "c32a1d4ab5d03f1284b67883e8d87530",
                    unpack="cifar10",
                    under="cifar-10-batches-bin/",
                ),
            ),
        ),
        Entry(
            "cifar100",
            "32×32 photographs of a hundred classes",
            "cifar",
            _CIFAR100,
            (3, 32, 32),
            "none given",
            "last 5,000 of 50,000",
            held_out=10,
            folders=("", "cifar100"),
            downloads=(
                Download(
                    "cifar100/cifar-100-binary.tar.gz",
                    (_TORONTO + "cifar-100-binary.tar.gz",),
                    "03b5dce01913d631647c71ecec9e9cb8",
                    unpack="cifar100",
                    under="cifar-100-binary/",
                ),
            ),
        ),
        Entry(
            "nmnist",
            "MNIST before a moving event camera: 10 frames of ON events",
            "nmnist",
            _DIGITS,
            (10, 34, 34),
            "CC BY-SA 4.0",
            "last 5,000 of 60,000",
            folders=("nmnist", "NMNIST"),
            downloads=(
                Download(
                    "nmnist/train.zip",
                    (_MENDELEY + "39c25547-014b-4137-a934-9d29fa53c7a0/file_downloaded",),
                    "20959b8e626244a1b502305a9e6e2031",
                    part="train",
                    unpack="nmnist",
                    under="Train/",
                ),
                Download(
                    "nmnist/test.zip",
                    (_MENDELEY + "05a4d654-7e03-4c15-bdfa-9bb2bcbea494/file_downloaded",),
                    "69ca8762b2fe404d9b9bad1103e97832",
                    part="test",
                    unpack="nmnist",
                    under="Test/",
                ),
            ),
            binary=True,
        ),
        Entry(
            "dvsgesture",
            "hand gestures: windows of 6 frames of 16 ms of ON events, 128×128 → 64×64",
            "dvsgesture",
            _GESTURES,
            (6, 64, 64),
            "CC BY 4.0",
            "subjects 20–23 of 1–23",
            folders=("dvsgesture", "DVSGesture", "DvsGesture", "dvsgesture/DvsGesture"),
            downloads=(
                Download(
                    "dvsgesture/ibmGestureTrain.tar.gz",
                    (_FIGSHARE + "38022171",),
                    "3a8f0d4120a166bac7591f77409cb105",
                    part="train",
                    unpack="dvsgesture",
                    under="ibmGestureTrain/",
                ),
                Download(
                    "dvsgesture/ibmGestureTest.tar.gz",
                    (_FIGSHARE + "38020584",),
                    "56070e45dadaa85fff82e0fbfbc06de5",
                    part="test",
                    unpack="dvsgesture",
                    under="ibmGestureTest/",
                ),
            ),
            binary=True,
        ),
    )
}


def names() -> list[str]:
    """The names `load` knows.

    Example:
        >>> names()[:3]
        ['mnist', 'mnist-grey', 'fashion-mnist']
    """
    return list(ENTRIES)


def find(name: str) -> Entry:
    """The data set of that name.

    Raises:
        DataError: No such name; the message has the nearest one.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    near = difflib.get_close_matches(name.lower(), ENTRIES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise DataError(f"Expected argument `name` to be one of {', '.join(ENTRIES)}, but got {name!r}{hint}")
